"""Conversations that `previous_response_id`, references to items and `GET /v1/responses/{id}` go back to.

In: the items of a conversation, its last answer included. Out: the same, on every replica, until `session_seconds` of the settings
are over. Waits for: the session store, which never fails: what it cannot read is not found.

A name is a hash of tenant and id, so the id of another tenant finds nothing. Each response keeps the whole conversation: what a long
one costs is bounded by the policy's context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec
import zstandard

from contracts.ids import completion_id_of, is_stored
from contracts.record_checks import is_completion_id
from runtime.replicas import SessionStore
from services.inference.dialects.responses_items import Item

_LARGE = 2**16
"""Bytes that are compressed or decompressed in a thread, because it takes longer than handing them over."""
_MAX_BYTES = 2**26


class KeptResponse(msgspec.Struct, frozen=True, array_like=True):
    """A response and its conversation. `response` has everything but the output, which is the last `num_output` items."""

    items: list[Item]
    num_output: int
    response: dict[str, Any]

    @property
    def output(self) -> list[Item]:
        """The items of the answer."""
        return self.items[len(self.items) - self.num_output :]

    @property
    def input(self) -> list[Item]:
        """The items that were answered, those of earlier responses included."""
        return self.items[: len(self.items) - self.num_output]


class ResponseStore:
    """See the module. `seconds`: how long a response is kept."""

    def __init__(self, sessions: SessionStore, seconds: float) -> None:
        self._sessions = sessions
        self._seconds = seconds

    async def read(self, tenant: str, response_ids: Iterable[str]) -> Mapping[str, KeptResponse]:
        """Those responses of a tenant that are kept, by id."""
        wanted = {
            response_id: completion_id
            for response_id in response_ids
            if is_completion_id(completion_id := completion_id_of(response_id)) and completion_id != response_id
        }
        if not wanted:
            return {}
        values = await self._sessions.read([_name(tenant, completion_id) for completion_id in wanted.values()])
        found = {}
        for response_id, value in zip(wanted, values, strict=True):
            if value is not None:
                is_large = len(value) > _LARGE
                kept = await asyncio.to_thread(_unpacked, value) if is_large else _unpacked(value)
                if kept is not None:
                    found[response_id] = kept
        return found

    async def write(self, tenant: str, completion_id: str, kept: KeptResponse) -> None:
        """Keep a response."""
        content = msgspec.msgpack.encode(kept)
        packed = await asyncio.to_thread(_packed, content) if len(content) > _LARGE else _packed(content)
        await self._sessions.write({_name(tenant, completion_id): packed}, self._seconds)


def why_missing(response_id: str) -> str:
    """Why a response may not be found."""
    if not is_stored(completion_id_of(response_id)):
        return "its request had store=false, or its task keeps nothing without store=true: send the conversation itself"
    return "it is of another tenant, was never made, or is not kept any more: send the conversation itself"


def _name(tenant: str, completion_id: str) -> str:
    return "resp:" + blake2b(f"{tenant}\0{completion_id}".encode(), digest_size=16).hexdigest()


def _packed(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(content)


def _unpacked(value: bytes) -> KeptResponse | None:
    try:
        content = zstandard.ZstdDecompressor().decompress(value, max_output_size=_MAX_BYTES)
        return msgspec.msgpack.decode(content, type=KeptResponse)
    except (zstandard.ZstdError, msgspec.DecodeError):
        return None  # of another release, or damaged: as if it were not there
