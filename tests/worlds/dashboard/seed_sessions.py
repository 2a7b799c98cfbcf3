"""Sessions of agents in a seeded home: their calls, their places in the tree, and what was said of them."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import insert

from contracts import tables
from contracts.ids import sample_key
from contracts.records import Generation, GenerationBody, Signal, Submitter, encode, pack_body, pack_floats, pack_ids
from contracts.sampling import Span
from contracts.turns import SessionShare, SessionTurn
from runtime.database import Database
from tests.worlds.dashboard.seed import POLICY, record_of

STEM = "chatcmpl-{:08x}-0000-7000-9000-{:012x}"


class SeededCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call. `parent`: the number of another one in its session; `credit`: of a session's signal, None: none reached it."""

    parent: int | None = None
    shared: int = 0
    branch: str = ""
    num_prompt: int = 100
    num_sampled: int = 20
    versions: tuple[int, ...] = (7,)
    state: str = "trained"
    reward: float | None = 1.0
    credit: float | None = None
    said: str = "where is order 17?"
    answer: str = ""
    tool: str = ""
    task: str = POLICY


def call_id(session: int, number: int) -> str:
    """Of call `number`, from 0, of one session."""
    return STEM.format(0xF0000000 + session, number)


def linear(num: int) -> list[SeededCall]:
    """A session of an agent whose calls extend each other."""
    return [
        SeededCall(
            parent=number - 1 if number else None,
            shared=120 * number,
            branch="" if number else "first",
            num_prompt=100 + 120 * number,
            credit=0.9 ** (num - 1 - number),
            tool="" if number == num - 1 else "look_up",
        )
        for number in range(num)
    ]


def seed_session(
    database: Database, session_id: str, calls: list[SeededCall], *, number: int, now: float, tenant: str = "default"
) -> None:
    """Write one session. `number` tells sessions apart."""
    rows: dict[str, list[dict[str, Any]]] = {"generation": [], "session_call": [], "score": [], "signal": []}
    line = [at for at, call in enumerate(calls) if call.credit is not None]
    for at, call in enumerate(calls):
        parent = None if call.parent is None else call_id(number, call.parent)
        turn = SessionTurn(None if parent is None else sample_key(parent, 0), call.shared, call.branch)
        record = _record(call_id(number, at), call, turn, now - 60 + at, session_id=session_id, tenant=tenant)
        rows["generation"].append(_generation(record, call))
        rows["session_call"].append(
            {"tenant": tenant, "session_id": session_id, "completion_id": record.completion_id, "choice": 0, "parent_id": parent,
             "parent_choice": None if parent is None else 0, "task": call.task, "is_cut": False, "at": record.created_at}
        )  # fmt: skip
        if call.state != "pending":
            rows["score"].append(_score(record, call))
        if call.credit is not None:
            share = SessionShare(
                session_id, sample_key(call_id(number, line[-1]), 0), line.index(at), len(line), call.credit, now
            )
            rows["signal"].append(_signal(record, share, now))
    with database.transaction() as connection:
        for name, values in rows.items():
            if values:
                connection.execute(insert(getattr(tables, name)), values)


def _record(
    completion_id: str, call: SeededCall, turn: SessionTurn, at: float, *, session_id: str, tenant: str
) -> Generation:
    body = GenerationBody(
        messages=[{"role": "user", "content": "help"}, {"role": "tool" if turn.parent else "user", "content": call.said}],
        text=call.answer, prompt_ids=pack_ids([1] * call.num_prompt), completion_ids=pack_ids([2] * call.num_sampled),
        logprobs=pack_floats([0.0] * call.num_sampled),
        tool_calls=[{"function": {"name": call.tool, "arguments": '{"order": 17}'}}] if call.tool else [],
    )  # fmt: skip
    return msgspec.structs.replace(
        record_of(1, 7, at), completion_id=completion_id, session_id=session_id, tenant=tenant, turn=turn, body=pack_body(body),
        spans=tuple(Span(5 * place, version) for place, version in enumerate(call.versions)), task=call.task,
        finish_reason="length" if call.branch == "answer_cut" else "stop",
    )  # fmt: skip


def _generation(record: Generation, call: SeededCall) -> dict[str, Any]:
    writer = "training" if call.state == "trained" else "rewards"
    return {
        "completion_id": record.completion_id, "choice": 0, "partition": 0, "policy": POLICY, "task": record.task,
        "tenant": record.tenant, "purpose": "user", "arm": record.arm, "version": call.versions[0], "created_at": record.created_at,
        "joined_at": record.created_at + 1, "closes_at": None, "revision": 1, "state": call.state, "state_reason": "",
        "state_writer": writer, "state_epoch": 2, "state_revision": 1, "state_version": 8 if call.state == "trained" else None,
        "record": encode(record),
    }  # fmt: skip


def _score(record: Generation, call: SeededCall) -> dict[str, Any]:
    return {
        "key": record.key, "revision": 1, "task": record.task, "purpose": "user", "version": call.versions[0],
        "reward": call.reward, "status": "unlabelled" if call.reward is None else "scored", "fault": "none", "tenant": record.tenant,
        "components": [], "at": record.created_at + 30,
    }  # fmt: skip


def _signal(record: Generation, share: SessionShare, now: float) -> dict[str, Any]:
    name = "solved" if not share.is_derived else f"session:solved:{record.completion_id}"
    said = Signal(
        id=name, completion_id=record.completion_id, choice=0, name="solved", value=True, at=now, received_at=now,
        tenant=record.tenant, submitter=Submitter(id="ann"), share=share,
    )  # fmt: skip
    return {"id": said.id, "tenant": record.tenant, "completion_id": record.completion_id, "choice": 0, "name": said.name,
            "submitter": "ann", "at": now, "received_at": now, "state": "joined", "reason": "", "revision": 1,
            "record": encode(said)}  # fmt: skip
