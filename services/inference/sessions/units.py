"""What an arm is drawn for: a person, a session or one answer. The first call that is drawn decides for its whole session.

An agent names its user in some of its calls and not in others, and nobody changes arms in the middle of a session.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b

import msgspec

from contracts.arms import Unit, unit_of
from contracts.draws import UnitKind
from runtime.replicas import SessionStore
from runtime.replicas.in_process import LocalSessionStore
from services.inference.requests import ChatRequest


class SessionUnits:
    """See the module. Belongs to one event loop. `wanted`: the kind of unit that is drawn where the request has it.

    `store`: what all replicas read; without an answer from it, a call is drawn by what it names itself. `seconds`: how long the unit of a
    session is kept, from its first call.
    """

    def __init__(self, wanted: UnitKind, store: SessionStore, seconds: float) -> None:
        self._wanted, self._seconds = wanted, seconds
        self._store, self._memory = store, LocalSessionStore()

    async def unit_of(self, request: ChatRequest, tenant: str, completion_id: str, *, logged: bool) -> Unit:
        """The unit of a request. `logged` False: nothing of it may be stored, so its session is known to this process alone."""
        session = request.labels.get("session_id")
        name, places = "", tuple[SessionStore, ...]()
        if self._wanted == "user" and session is not None:
            name = "unit:" + blake2b(f"{tenant}\0{session}".encode(), digest_size=16).hexdigest()
            places = (self._memory, self._store) if logged else (self._memory,)
        for place in places:
            [value] = await place.read([name])
            with suppress(msgspec.MsgspecError):  # another release wrote it in a form of its own
                kept: Unit | None = None if value is None else msgspec.msgpack.decode(value, type=Unit)
                if kept is not None:
                    if place is not self._memory:
                        await self._memory.write({name: msgspec.msgpack.encode(kept)}, self._seconds)
                    return kept
        person = request.person
        unit = unit_of(self._wanted, tenant=tenant, person=person, session_id=session, completion_id=completion_id)
        for place in places:
            await place.write({name: msgspec.msgpack.encode(unit)}, self._seconds)
        return unit
