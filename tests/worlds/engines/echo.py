"""An engine that repeats the prompt, token by token, so that the user's text is in the answer too.

In: requests over loopback. Out: streams in the dialect of ours. Waits for: the next request, where a test wants an answer that takes long.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.worlds.engines.mock import MockEngine, generation_of


class EchoEngine:
    """See the module. `hold`: how many of the next answers stop after their first token."""

    def __init__(self) -> None:
        self.port = self.hold = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[EchoEngine]:
        """Answer on a port of its own until the block ends."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: MockEngine(0.0, self._generate), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    def _generate(self, body: bytes) -> list[bytes]:
        asked = json.loads(body)
        said = generation_of(asked["token_ids"][: asked["sampling_params"]["max_tokens"]], "length")
        if not self.hold:
            return said
        self.hold -= 1
        return said[:1]
