"""Conversations that `previous_response_id`, references to items and `GET /v1/responses/{id}` go back to.

In: the items of a conversation, its last answer included. Out: the same, on every replica, until `session_seconds` of the settings
are over. Waits for: the session store, which never fails: what it cannot read is not found.

A name is a hash of tenant and id, so the id of another tenant finds nothing; what a session asked for is found by that session and by
the apps of its tenant. Each response keeps the whole conversation: what a long one costs is bounded by the policy's context, and what
one request may read is bounded in responses and bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
import zstandard

from contracts.errors import InvalidRequest
from contracts.ids import completion_id_of
from contracts.keys import Caller, Owner
from contracts.record_checks import is_completion_id
from runtime.replicas import SessionStore
from services.inference.dialects.responses_items import Item

MAX_READ = 256
"""Earlier responses that one request may refer to."""
MAX_READ_BYTES = 2**25
"""Of all of them, decompressed."""
_LARGE = 2**16
"""Bytes that are compressed or decompressed in a thread, because it takes longer than handing them over."""


class KeptResponse(msgspec.Struct, frozen=True, array_like=True):
    """A response and its conversation, whose parts are decoded only where they are needed."""

    items: list[msgspec.Raw]
    num_output: int
    response: msgspec.Raw
    """Everything but the output, which is the last `num_output` items."""
    session: str | None = None
    """The session that asked for it; None: an app, or an older release kept it."""

    @property
    def output(self) -> list[Item]:
        """The items of the answer."""
        return _items(self.items[len(self.items) - self.num_output :])

    @property
    def input(self) -> list[Item]:
        """The items that were answered, those of earlier responses included."""
        return _items(self.items[: len(self.items) - self.num_output])

    def shown(self) -> dict[str, Any]:
        """The response as its request got it."""
        head: dict[str, Any] = msgspec.msgpack.decode(self.response)
        return head | {"output": self.output}


class ResponseStore:
    """See the module. `seconds`: how long a response is kept."""

    def __init__(self, sessions: SessionStore, seconds: float) -> None:
        self._sessions = sessions
        self._seconds = seconds

    async def read(self, caller: Caller, response_ids: Collection[str]) -> Mapping[str, KeptResponse]:
        """Those that are kept and that the caller may read, by id. Raises InvalidRequest: they are more, or larger, than one request may read."""
        if len(response_ids) > MAX_READ:
            many = f"{len(response_ids):,} earlier responses, and may refer to {MAX_READ}; send the items themselves"
            raise InvalidRequest(f"`input` refers to items of {many}", param="input")
        found, num_bytes = dict[str, KeptResponse](), 0
        for response_id in response_ids:
            completion_id = completion_id_of(response_id)
            if completion_id == response_id or not is_completion_id(completion_id):
                continue
            [value] = await self._sessions.read([_name(caller.tenant, completion_id)])
            size = 0 if value is None else _size_of(value)
            num_bytes += size
            if num_bytes > MAX_READ_BYTES:
                most = f"{MAX_READ_BYTES // 2**20} MiB; send the items that are needed themselves"
                raise InvalidRequest(f"the responses that this request names are longer than {most}", param="input")
            if value is None or not size:
                continue
            kept = await asyncio.to_thread(_unpacked, value) if size > _LARGE else _unpacked(value)
            if kept is not None and caller.may_read(Owner(caller.tenant, kept.session)):
                found[response_id] = kept
        return found

    async def write(
        self, owner: Owner, completion_id: str, items: Sequence[Item], num_output: int, response: Mapping[str, Any]
    ) -> None:
        """Keep a response; see `KeptResponse`."""
        content = msgspec.msgpack.encode((items, num_output, response, owner.session))
        packed = await asyncio.to_thread(_packed, content) if len(content) > _LARGE else _packed(content)
        await self._sessions.write({_name(owner.tenant, completion_id): packed}, self._seconds)


def _items(raws: Sequence[msgspec.Raw]) -> list[Item]:
    return [msgspec.msgpack.decode(raw) for raw in raws]


def _name(tenant: str, completion_id: str) -> str:
    return "resp:" + blake2b(f"{tenant}\0{completion_id}".encode(), digest_size=16).hexdigest()


def _packed(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(content)


def _size_of(value: bytes) -> int:
    """Bytes when decompressed; 0 if they are damaged, or do not say it."""
    try:
        return max(0, zstandard.frame_content_size(value))
    except zstandard.ZstdError:
        return 0


def _unpacked(value: bytes) -> KeptResponse | None:
    try:
        content = zstandard.ZstdDecompressor().decompress(value, max_output_size=MAX_READ_BYTES)
        return msgspec.msgpack.decode(content, type=KeptResponse)
    except (zstandard.ZstdError, msgspec.DecodeError):
        return None  # of another release, or damaged: as if it were not there
