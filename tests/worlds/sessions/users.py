"""Users of sessions: conversations of many turns, asked again after each broken connection.

In: an address and a key. Out: every request that was sent, and how it ended. Waits for: the serving API, also while it is down.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from services.inference.engine.http import Broken, HttpClient
from tests.worlds.gateway import OK, GatewayWorld, client_of

CONTEXT = 65_536
_PATH = "/v1/chat/completions"
_AGAIN_SECONDS, _LOOK_SECONDS = 0.05, 0.01
_DONE = b"data: [DONE]"


class Sent(NamedTuple):
    """One request. `ended`: "whole", "broken", or the status that refused it. `attempt` is in its metadata, so the log has it."""

    attempt: str
    session: str
    turn: int
    ended: str


def wide_base(base: Path, folder: Path) -> Path:
    """A copy of a base policy's files with a context that is long enough for conversations."""
    shutil.copytree(base, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return folder


class SessionUsers:
    """Many conversations at once, until `stop`. Belongs to one event loop.

    Args:
        world: where to ask.
        turns: of a conversation; then another one begins in its place.
        options: further fields of each request.
        pause: seconds between two turns of a conversation, drawn anew each time.
    """

    def __init__(
        self,
        world: GatewayWorld,
        turns: int,
        options: dict[str, Any] | None = None,
        pause: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._world, self._turns, self._options, self._pause = world, turns, options or {}, pause
        self._is_over = False
        self.sent: list[Sent] = []
        self.num_whole = 0
        self.num_ended = 0
        """Conversations that came to their end."""

    async def run(self, at_once: int) -> None:
        """Talk until `stop`; conversations then break off after the turn under way."""
        client = client_of(self._world.gateway, self._world.key)
        try:
            await asyncio.gather(*(self._talk_on(client, stream=number % 2 == 1) for number in range(at_once)))
        finally:
            client.close()

    async def more(self, num: int) -> None:
        """Wait for so many more whole answers."""
        wanted = self.num_whole + num
        while self.num_whole < wanted:  # noqa: ASYNC110 hundreds of conversations count
            await asyncio.sleep(_LOOK_SECONDS)

    async def end_of(self, num: int) -> None:
        """Wait until so many conversations have come to their end since the start."""
        while self.num_ended < num:  # noqa: ASYNC110 as above
            await asyncio.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """End."""
        self._is_over = True

    async def _talk_on(self, client: HttpClient, *, stream: bool) -> None:
        while not self._is_over:
            await self._talk(client, uuid.uuid4().hex, stream=stream)

    async def _talk(self, client: HttpClient, session: str, *, stream: bool) -> None:
        messages = [{"role": "system", "content": "Turn the wish into a booking."}]
        for turn in range(self._turns):
            await asyncio.sleep(self._pause())
            messages.append(
                {"role": "user", "content": f"{session} {turn}: and now a table on Friday at half past seven."}
            )
            while (said := await self._ask(client, session, turn, messages, stream=stream)) is None:
                if self._is_over:
                    return
                await asyncio.sleep(_AGAIN_SECONDS)
            messages.append({"role": "assistant", "content": said})
            if self._is_over:
                return
        self.num_ended += 1

    async def _ask(
        self, client: HttpClient, session: str, turn: int, messages: list[dict[str, str]], *, stream: bool
    ) -> str | None:
        attempt = uuid.uuid4().hex
        content: dict[str, Any] = {
            "model": "gateway",
            "messages": messages,
            "stream": stream,
            "metadata": {"session_id": session, "attempt": attempt},
            **self._options,
        }
        said, ended = None, "broken"
        try:
            exchange = await client.begin("POST", _PATH, json.dumps(content).encode())
            try:
                body = await exchange.read_all()
            finally:
                exchange.end()
            said, ended = _text_of(exchange.status, body, stream=stream)
        except Broken:
            pass
        self.sent.append(Sent(attempt, session, turn, ended))
        self.num_whole += ended == "whole"
        return said


def _text_of(status: int, body: bytes, *, stream: bool) -> tuple[str | None, str]:
    if status != OK:
        return None, str(status)
    if not stream:
        return json.loads(body)["choices"][0]["message"]["content"], "whole"
    if _DONE not in body:
        return None, "broken"
    lines = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: {")]
    events = [json.loads(line) for line in lines]
    if any("error" in event for event in events):
        return None, "error"
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"]), "whole"
