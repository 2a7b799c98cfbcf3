"""A page of the calls of one session, oldest first, with what became of each.

A page costs a fixed number of statements, however many calls it has. Records are opened a few at a time, since the prompt of a late call
contains the whole session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, Select, func, select, true, tuple_

from contracts.errors import InvalidRecord
from contracts.ids import sample_key
from contracts.ledger import effective_state
from contracts.records import Generation, Signal, decode_shape
from contracts.tables import generation, score, session_call, signal
from contracts.tables.statements import among
from contracts.turns import SessionShare, SessionTurn
from services.dashboard.generations.detail import cut, messages

PAGE = 200
MAX_SIGNALS = 1_000
"""Of all calls on a page; the oldest are shown."""
_OPENED_AT_ONCE = 25
_EXCERPT = 120
_TOKEN_BYTES = 4


class CallRef(NamedTuple):
    """One choice of one completion. Calls sort by time, with which their ids begin."""

    completion_id: str
    choice: int

    @property
    def key(self) -> str:
        """The sample key."""
        return sample_key(self.completion_id, self.choice)


class CallRecord(NamedTuple):
    """What the log holds of a call. `said`: the last message of its prompt; `answer`: with calls of tools as `name(arguments)`."""

    turn: SessionTurn
    versions: tuple[int, ...]
    finish_reason: str
    num_prompt: int
    num_sampled: int
    said: str
    answer: str


class CallSignal(NamedTuple):
    """A signal about a call. `share`: the call's part in it, if it is about the whole session."""

    id: str
    name: str
    state: str
    value: str
    share: SessionShare | None


class ShownCall(NamedTuple):
    """One call of a session. `number` counts from 1 in the order of time."""

    ref: CallRef
    number: int
    parent: CallRef | None
    task: str
    at: float
    head: Row[Any] | None
    """state, state_reason, state_version; None: the answer's day was deleted."""
    record: CallRecord | None
    """None: this process cannot read it, or the answer's day was deleted."""
    score: Row[Any] | None
    """revision, reward, status, fault: of the latest revision."""
    signals: list[CallSignal]


class SessionPage(NamedTuple):
    """`after` None: there are no later calls. `num_calls`: of the whole session."""

    calls: list[ShownCall]
    num_calls: int
    after: CallRef | None


def find_session(connection: Connection, tenant: str, session_id: str, after: CallRef | None = None) -> SessionPage:
    """The calls of a session that come after one, `PAGE` at most. A session without calls is not known here."""
    table = session_call.c
    order = (table.completion_id, table.choice)
    mine = (table.tenant == tenant, table.session_id == session_id)
    is_later = tuple_(*order) > tuple_(*after) if after else true()
    counts = select(func.count(), func.count().filter(is_later)).where(*mine)
    num_calls, num_later = connection.execute(counts).one()
    statement = select(*order, table.parent_id, table.parent_choice, table.task, table.at).where(*mine, is_later)
    places: list[Row[Any]] = list(connection.execute(statement.order_by(*order).limit(PAGE)))
    calls = _with_facts(connection, places, num_calls - num_later) if places else []
    return SessionPage(calls, num_calls, calls[-1].ref if num_later > len(calls) else None)


def _with_facts(connection: Connection, places: Sequence[Row[Any]], num_before: int) -> list[ShownCall]:
    refs = [CallRef(place.completion_id, place.choice) for place in places]
    records = dict(_records(connection, refs))
    columns = generation.c["completion_id", "choice", "state_reason", "state_version"]
    mine: Select[Any] = select(*columns, effective_state().label("state")).where(_about(connection, generation, refs))
    heads = {CallRef(row.completion_id, row.choice): row for row in connection.execute(mine)}
    earned = select(*score.c["key", "revision", "reward", "status", "fault"]).order_by(score.c.revision)
    ours = earned.where(among(connection, score.c.key, [ref.key for ref in refs]))
    scores = {row.key: row for row in connection.execute(ours)}
    signals = _signals(connection, refs)
    return [
        ShownCall(
            ref=ref,
            number=number,
            parent=None if place.parent_id is None else CallRef(place.parent_id, place.parent_choice or 0),
            task=place.task,
            at=place.at,
            head=heads.get(ref),
            record=records.get(ref),
            score=scores.get(ref.key),
            signals=signals[ref],
        )
        for number, (ref, place) in enumerate(zip(refs, places, strict=True), num_before + 1)
    ]


def _records(connection: Connection, refs: Sequence[CallRef]) -> Iterator[tuple[CallRef, CallRecord]]:
    columns = generation.c["completion_id", "choice", "record"]
    for start in range(0, len(refs), _OPENED_AT_ONCE):
        some = refs[start : start + _OPENED_AT_ONCE]
        for row in connection.execute(select(*columns).where(_about(connection, generation, some))):
            if (record := _opened(row.record)) is not None:
                yield CallRef(row.completion_id, row.choice), record


def _opened(wire: bytes) -> CallRecord | None:
    try:
        record = decode_shape(Generation, wire)
        body = record.open()
    except InvalidRecord:
        return None
    said = messages(body.messages[-1:])
    return CallRecord(
        record.turn or SessionTurn(),
        tuple(dict.fromkeys(span.version for span in record.spans)),
        record.finish_reason,
        len(body.prompt_ids) // _TOKEN_BYTES,
        len(body.completion_ids) // _TOKEN_BYTES,
        cut(f"{said[0].role}: {said[0].content}", _EXCERPT) if said else "",
        cut("\n".join([body.text, *map(_called, body.tool_calls)]).strip(), _EXCERPT),
    )


def _called(call: dict[str, Any]) -> str:
    function = call.get("function")
    return f"{function.get('name')}({function.get('arguments')})" if isinstance(function, dict) else "?"


def _signals(connection: Connection, refs: Sequence[CallRef]) -> defaultdict[CallRef, list[CallSignal]]:
    columns = signal.c["completion_id", "choice", "id", "name", "state", "record"]
    statement = select(*columns).where(_about(connection, signal, refs)).order_by(signal.c.received_at, signal.c.id)
    found: defaultdict[CallRef, list[CallSignal]] = defaultdict(list)
    for row in connection.execute(statement.limit(MAX_SIGNALS)):
        value, share = _read(row.record)
        found[CallRef(row.completion_id, row.choice)].append(CallSignal(row.id, row.name, row.state, value, share))
    return found


def _read(wire: bytes) -> tuple[str, SessionShare | None]:
    try:
        record = decode_shape(Signal, wire)
    except InvalidRecord:
        return "(cannot be read)", None
    text = record.value if isinstance(record.value, str) else msgspec.json.encode(record.value).decode()
    return cut(text, _EXCERPT), record.share


def _about(connection: Connection, table: Any, refs: Sequence[CallRef]) -> Any:
    return among(connection, table.c.completion_id, sorted({ref.completion_id for ref in refs}))
