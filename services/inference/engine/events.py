"""Splits the stream of an engine into server-sent events. Pure."""

from __future__ import annotations

from contracts.errors import EngineFailed
from engines.token_route import shown

MOST_LINE_BYTES = 2**26
"""The last event of a long answer has the experts of every token: 48 layers of 8 take 384 bytes a token."""
_FIELDS = (b"event:", b"id:", b"retry:")


class Lines:
    """Splits what arrives into lines of at most `most_bytes`."""

    def __init__(self, most_bytes: int = MOST_LINE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._parts: list[bytes] = []
        self._num_bytes = 0

    def split(self, arrived: bytes) -> list[bytes]:
        """The lines that are complete now.

        Raises:
            EngineFailed: a line is too long.
        """
        *lines, rest = arrived.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts, self._num_bytes = [], 0
        if rest:
            self._parts.append(rest)
            self._num_bytes += len(rest)
            if self._num_bytes > self._most_bytes:
                raise EngineFailed(f"the engine sent more than {self._most_bytes} bytes without an end of line")
        return lines


def data_of(line: bytes) -> bytes | None:
    """The data of a line of server-sent events, without its line feed; None if the line has no data.

    Raises:
        EngineFailed: it is not such a line, or it is `[DONE]`, which must not come before the finish reason.
    """
    line = line.rstrip(b"\r")
    if line.startswith(b"data:"):
        data = line[5:].strip()
        if data == b"[DONE]":
            raise EngineFailed("the engine ended a stream before its answer")
        return data
    if not line or line.startswith((b":", *_FIELDS)):
        return None
    raise EngineFailed(f"the engine's stream has a line that is not an event: {shown(line)}")
