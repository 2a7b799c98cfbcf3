"""Identifiers that carry their route.

A completion id is `chatcmpl-<uuidv7>` (RFC 9562 §5.7). The twelve bits after the version digit are the route: the hash of the
session, or random. It chooses the partition on every topic, so a signal that has the completion id finds its generation.
A response of the Responses API is `resp_<uuidv7>`, with the same uuid. The id of an answer that must not be stored is a version 8
UUID (§5.8): every process sees that there is no record, and stores nothing about it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
import uuid

from contracts.errors import InvalidRequest

NUM_ROUTES = 4096
_MAX_QUOTED = 128
_PREFIX, _RESPONSE = "chatcmpl-", "resp_"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[78][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_VERSION_AT = len(_PREFIX) + 14
_STORED, _NOT_STORED = 0x7, 0x8


def new_completion_id(session_id: str | None = None, *, stored: bool = True) -> str:
    """A new completion id; completions of one session share a route. `stored` False: the answer must not be stored."""
    route = route_of_text(session_id) if session_id else secrets.randbelow(NUM_ROUTES)
    return _id_of(time.time_ns() // 1_000_000, _STORED if stored else _NOT_STORED, route, secrets.randbits(62))


def imported_completion_id(at: float, content: bytes, session_id: str | None = None) -> str:
    """The id of an answer that was logged elsewhere: the same for the same time (UTC epoch seconds), session and content."""
    bits = int.from_bytes(hashlib.blake2b(content, digest_size=10).digest())
    route = route_of_text(session_id) if session_id else bits >> 62 & (NUM_ROUTES - 1)
    return _id_of(int(at * 1000), _STORED, route, bits & (2**62 - 1))


def _id_of(milliseconds: int, kind: int, route: int, bits: int) -> str:
    value = (milliseconds & (2**48 - 1)) << 80 | kind << 76 | route << 64 | 0b10 << 62 | bits
    return f"{_PREFIX}{uuid.UUID(int=value)}"


def response_id_of(completion_id: str) -> str:
    """The id that an answer has in the Responses API."""
    return _RESPONSE + completion_id.removeprefix(_PREFIX)


def completion_id_of(text: str) -> str:
    """The completion id of a response's id; any other text as it is."""
    value = text.removeprefix(_RESPONSE)
    return _PREFIX + value if value != text and _UUID.fullmatch(value) else text


def route_of(completion_id: str) -> int:
    """The route inside a completion id. Raises InvalidRequest: the text is not one of our completion ids."""
    prefix, value = completion_id[: len(_PREFIX)], completion_id[len(_PREFIX) :]
    if prefix != _PREFIX or not _UUID.fullmatch(value):
        raise InvalidRequest(
            f"{completion_id[:_MAX_QUOTED]!r} is not a completion id; send the `id` of the completion exactly as you received it",
            param="completion_id",
        )
    return int(value[15:18], 16)  # the three digits after the version's


def is_stored(completion_id: str) -> bool:
    """False if the id says that its answer was not stored."""
    return completion_id[_VERSION_AT : _VERSION_AT + 1] != f"{_NOT_STORED:x}" or not _UUID.fullmatch(
        completion_id[len(_PREFIX) :]
    )


def time_of(completion_id: str) -> float:
    """When an id was made, UTC epoch seconds, to the millisecond; 0 for a text that is not a completion id."""
    value = completion_id[len(_PREFIX) :]
    return (uuid.UUID(value).int >> 80) / 1000 if _UUID.fullmatch(value) else 0.0


def first_id_at(milliseconds: int) -> str:
    """A lower bound: no id or sample key that was made at this time (UTC epoch milliseconds) or later sorts before it."""
    digits = f"{milliseconds:012x}"
    return f"{_PREFIX}{digits[:8]}-{digits[8:]}"


def route_of_text(text: str) -> int:
    """The route of any other key, such as a session id."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=2).digest()) % NUM_ROUTES


def sample_key(completion_id: str, choice: int) -> str:
    """The key of one generation, and of its base sample."""
    return f"{completion_id}:{choice}"


def parse_sample_key(key: str) -> tuple[str, int]:
    """Invert `sample_key`."""
    completion_id, _, choice = key.rpartition(":")
    return completion_id, int(choice)
