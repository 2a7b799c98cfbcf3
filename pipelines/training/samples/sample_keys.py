"""Sample keys in few bytes, in the order of time. Pure."""

from __future__ import annotations

_PREFIX, _ID_BYTES = "chatcmpl-", 16
_OTHER = b"\xff"
"""Starts keys that are not of completions. A completion id starts with the time, which reaches this byte in the year 10,889."""


def pack_key(key: str) -> bytes:
    """A sample key in few bytes, in the order of the completions' times."""
    text, _, choice = key.rpartition(":")
    if text.startswith(_PREFIX) and choice.isdecimal() and str(int(choice)) == choice:
        try:
            found = bytes.fromhex(text[len(_PREFIX) :].replace("-", ""))
        except ValueError:
            pass
        else:
            if len(found) == _ID_BYTES and _completion(found) == text and found[:1] != _OTHER:
                return found + choice.encode()
    return _OTHER + key.encode("utf-8", "surrogatepass")


def unpack_key(packed: bytes) -> str:
    """Invert `pack_key`."""
    if packed[:1] == _OTHER:
        return packed[1:].decode("utf-8", "surrogatepass")
    return f"{_completion(packed[:_ID_BYTES])}:{packed[_ID_BYTES:].decode()}"


def _completion(found: bytes) -> str:
    """The id of a completion. `uuid.UUID` would take five times as long."""
    text = found.hex()
    return f"{_PREFIX}{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def generated_at(key: str) -> float | None:
    """When the completion of a sample key began, UTC epoch seconds; None if the key does not say."""
    packed = pack_key(key)
    return None if packed[:1] == _OTHER else int.from_bytes(packed[:6], "big") / 1000
