"""Sessions over HTTP: the engine gets the tokens that it made before, and the log says which call goes on from which."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.ids import sample_key
from contracts.records import Generation, unpack_ids
from contracts.turns import SessionTurn
from runtime.replicas import SessionStore
from runtime.replicas.in_process import LocalSessionStore
from runtime.replicas.on_disk import DiskSessionStore
from services.inference.app import create_app
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.world import Stage, StubbornLog
from tests.unit.services.serving import make_home, serve
from tests.worlds.passing import Clock

ASKED = [{"role": "user", "content": "hi"}]
MORE = {"role": "user", "content": "ok"}


def ask(inference: Inference, messages: list[dict[str, Any]], **changes: Any) -> Any:
    metadata = {"session_id": "s1", **changes.pop("metadata", {})}
    return inference.ask(messages=messages, metadata=metadata, **changes)


def said(answer: Any, choice: int = 0) -> dict[str, Any]:
    return {"role": "assistant", "content": answer.choices[choice].message.content}


def turns(inference: Inference) -> list[SessionTurn]:
    """Of all calls, which all have a session."""
    found = [record.turn for record in inference.logged()]
    assert None not in found
    return [turn for turn in found if turn is not None]


def ids_of(record: Generation) -> list[int]:
    body = record.open()
    return [*unpack_ids(body.prompt_ids), *unpack_ids(body.completion_ids)]


def test_the_next_call_begins_with_the_tokens_of_the_one_before(inference: Inference) -> None:
    first = ask(inference, ASKED)
    second = ask(inference, [*ASKED, said(first), MORE])
    one, two = inference.logged()
    before = ids_of(one)
    assert turns(inference) == [SessionTurn(branch="first"), SessionTurn(sample_key(first.id, 0), len(before))]
    assert inference.engine.requests[-1]["token_ids"][: len(before)] == before
    assert unpack_ids(two.open().prompt_ids) == inference.engine.requests[-1]["token_ids"]
    assert second.usage.prompt_tokens == len(inference.engine.requests[-1]["token_ids"])


def test_streamed_answers_and_several_choices_can_be_gone_on_from(inference: Inference) -> None:
    stream = list(ask(inference, ASKED, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    history = [*ASKED, {"role": "assistant", "content": text}, MORE]
    both = ask(inference, history, n=2)
    ask(inference, [*history, said(both, 1), MORE])
    *_, last = turns(inference)
    # Both choices have the same text here, so either may be the parent.
    assert last.parent in {sample_key(both.id, 0), sample_key(both.id, 1)}
    assert [turn.parent for turn in turns(inference)[1:3]] == [sample_key(stream[0].id, 0)] * 2


def test_calls_without_a_session_are_rendered_whole(inference: Inference) -> None:
    first = inference.ask(messages=ASKED)
    inference.ask(messages=[*ASKED, said(first), MORE])
    assert [record.turn for record in inference.logged()] == [None, None]


def test_what_the_client_changed_is_a_branch_with_its_reason(inference: Inference) -> None:
    first = ask(inference, ASKED)
    ask(inference, [*ASKED, {"role": "assistant", "content": "never said"}, MORE])
    ask(inference, [*ASKED, said(first), MORE], max_tokens=3)
    cut = inference.logged()[-1]
    ask(inference, [*ASKED, said(first), MORE, {"role": "assistant", "content": cut.open().text}, MORE])
    found = turns(inference)
    assert [turn.branch for turn in found] == ["first", "answer_rewritten", "", "answer_cut"]
    assert found[-1].parent == cut.key


def test_an_answer_that_was_stopped_by_a_string_is_not_gone_on_from(inference: Inference) -> None:
    first = ask(inference, ASKED, stop=["4"])
    ask(inference, [*ASKED, said(first), MORE])
    assert turns(inference)[-1].branch == "answer_cut"


@pytest.mark.usefixtures("alone")
def test_an_answer_that_may_not_be_stored_leaves_nothing_on_disk(inference: Inference, tmp_path: Path) -> None:
    first = ask(inference, ASKED, store=False)
    ask(inference, [*ASKED, said(first), MORE], store=False)
    assert inference.logged() == []
    assert inference.engine.requests[-1]["token_ids"][:2] == inference.engine.requests[0]["token_ids"][:2]
    files = [path for path in tmp_path.rglob("sessions.db*") if path.stat().st_size]
    assert all(b"turn:" not in path.read_bytes() for path in files)


@pytest.mark.usefixtures("alone")
def test_another_replica_and_a_new_process_go_on(inference: Inference, stage: Stage, tmp_path: Path) -> None:
    first = ask(inference, ASKED)
    log = StubbornLog(tmp_path / "log")
    body = {"model": "demo", "messages": [*ASKED, said(first), MORE], "metadata": {"session_id": "s1"}}
    with serve(create_app(make_home(tmp_path, stage.url), event_log=log)) as url:
        answer = httpx.post(
            f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {inference.key}"}
        )
    assert answer.status_code == 200
    assert turns(inference)[-1].parent == sample_key(first.id, 0)


def test_an_empty_session_is_none(inference: Inference) -> None:
    for _ in range(2):
        ask(inference, ASKED, metadata={"session_id": ""})
    assert [record.turn for record in inference.logged()] == [None, None]


Make = Callable[[Path, Clock], SessionStore]
MAKERS: dict[str, Make] = {
    "memory": lambda _path, clock: LocalSessionStore(clock),
    "file": lambda path, clock: DiskSessionStore(path / "sessions.db", clock),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_values_are_read_in_order_until_their_time(tmp_path: Path, make: Make) -> None:
    clock = Clock(1000.0)
    store = make(tmp_path, clock)

    async def use() -> None:
        await store.write({"a": b"1", "b": b"2"}, 100.0)
        await store.write({"b": b"3"}, 200.0)
        assert await store.read(["b", "none", "a"]) == [b"3", None, b"1"]
        await store.shorten(["b", "none"], 50.0)
        await store.shorten(["a"], 500.0)  # shorten never makes it longer
        clock.now += 60.0
        assert await store.read(["b", "a"]) == [None, b"1"]
        clock.now += 60.0
        assert await store.read(["a"]) == [None]
        assert await store.read([]) == []

    asyncio.run(use())
    store.close()
    store.close()


def test_a_file_survives_its_process_and_is_read_by_another(tmp_path: Path) -> None:
    async def use() -> None:
        one, other = DiskSessionStore(tmp_path / "s.db"), DiskSessionStore(tmp_path / "s.db")
        await one.write({"a": b"1"}, 60.0)
        assert await other.read(["a"]) == [b"1"]
        one.close()
        other.close()
        assert await DiskSessionStore(tmp_path / "s.db").read(["a"]) == [b"1"]

    asyncio.run(use())


def test_a_file_that_cannot_be_used_finds_nothing_and_fails_nobody(tmp_path: Path) -> None:
    async def use() -> None:
        missing = DiskSessionStore(tmp_path / "none" / "s.db")
        (tmp_path / "broken.db").write_bytes(b"not a database" * 100)
        broken = DiskSessionStore(tmp_path / "broken.db")
        for store in (missing, broken):
            await store.write({"a": b"1"}, 60.0)
            await store.shorten(["a"], 1.0)
            assert await store.read(["a", "b"]) == [None, None]

    asyncio.run(use())


def test_a_locked_file_is_not_waited_for(tmp_path: Path) -> None:
    async def use() -> None:
        store = DiskSessionStore(tmp_path / "s.db")
        await store.write({"a": b"1"}, 60.0)
        with sqlite3.connect(tmp_path / "s.db") as other:
            other.execute("BEGIN IMMEDIATE")
            await store.write({"b": b"2"}, 60.0)
            assert await store.read(["a", "b"]) == [b"1", None]
        await store.write({"b": b"2"}, 60.0)
        assert await store.read(["b"]) == [b"2"]

    asyncio.run(use())


def test_memory_is_bounded() -> None:
    async def use() -> None:
        store = LocalSessionStore(max_bytes=10_000)
        for number in range(100):
            await store.write({str(number): bytes(1000)}, 60.0)
        found = await store.read([str(number) for number in range(100)])
        assert found[-1] is not None
        assert 1 <= sum(value is not None for value in found) <= 10

    asyncio.run(use())


def test_a_file_is_bounded(tmp_path: Path) -> None:
    async def use() -> None:
        clock = Clock(1000.0)
        store = DiskSessionStore(tmp_path / "s.db", clock, max_bytes=200_000)
        for number in range(100):
            clock.now += 61.0  # each write sweeps
            await store.write({str(number): bytes(10_000)}, 1e6)
        found = await store.read([str(number) for number in range(100)])
        assert found[-1] is not None
        assert 1 <= sum(value is not None for value in found) <= 25

    asyncio.run(use())
