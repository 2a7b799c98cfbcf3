"""How the chunks of a streamed answer become server-sent events. Pure.

OpenAI's chats send `data:` lines and `[DONE]`. Other dialects name each event after its type, and their last event says that they
have ended.
"""

from __future__ import annotations

from typing import Any

from contracts.errors import MillraceError
from services.http import event

DONE = b"data: [DONE]\n\n"


class _Forgetful:
    """Keeps nothing of a conversation."""

    async def keep(self) -> None:
        """See `Replies`."""


class DataEvents(_Forgetful):
    """Lines of `data:`, and `[DONE]` behind the last chunk. `end`: what follows a stream that ended well."""

    end = DONE

    def encode(self, chunk: dict[str, Any]) -> bytes:
        """One chunk as an event."""
        return event(chunk)

    def failure(self, error: MillraceError) -> dict[str, Any]:
        """The last chunk of a stream that fails: the status line has been sent."""
        return error.as_openai()


class NamedEvents(_Forgetful):
    """Each event has its type as its name; see `DataEvents`. A dialect says itself what its error is."""

    end = b""

    def encode(self, chunk: dict[str, Any]) -> bytes:
        """One chunk as an event."""
        return f"event: {chunk['type']}\n".encode() + event(chunk)
