"""Several replicas behind one endpoint: who answers, and what happens when a replica fails in each of the ways it can."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
from fastapi import Request
from prometheus_client import REGISTRY
from starlette.responses import JSONResponse, Response, StreamingResponse

from contracts.assignments import CANARY, CANDIDATE, LIVE, move
from contracts.engines import EngineReplica, announce, read_replicas, withdraw
from contracts.packing import support_of
from contracts.records import unpack_ids
from contracts.sampling import Span
from engines.card_users import GpuSettings, WaitingUsers
from runtime.database import Database
from runtime.settings import write_settings
from services.inference import arms
from services.inference.app import create_app
from services.inference.engine import pool, rows
from tests.unit.services.inference.conftest import SAYS, Inference, a_service, text_of
from tests.unit.services.inference.world import FakeEngine, Stage, StubbornLog, event_of, make_base
from tests.unit.services.serving import PATIENCE_SECONDS, make_home, make_key, serve, wait_until

TEXT = "Tisch für 4: {ok}"
NAMES = ("a", "b")


class Odd(FakeEngine):
    """Answers in one of the ways that break the protocol, if told to.

    Attributes:
        oddity: `no_choices`, `refuses`, `lies`, `overloaded`, or none.
    """

    oddity = ""

    async def health(self) -> Response:
        """See `FakeEngine`; an odd one stays out of rotation."""
        return JSONResponse({"status": "restarting"}, status_code=503) if self.oddity else await super().health()

    async def generate(self, request: Request) -> Response:
        """See `FakeEngine`."""
        if not self.oddity:
            return await super().generate(request)
        self.requests.append(await request.json())
        if self.oddity == "refuses":
            return JSONResponse({"error": {"message": "loading", "code": "unavailable"}}, status_code=503)
        if self.oddity == "overloaded":
            return JSONResponse({"error": {"message": "full", "code": "engine_overloaded"}}, status_code=429)
        said = 'data: {"choices": []}\n\n' if self.oddity == "no_choices" else event_of(70, [(0, 99)], None)
        return StreamingResponse(iter([said]), media_type="text/event-stream")


class Replicas(Inference):
    """An endpoint with two replicas, `a` and `b`, in region `local`."""

    def __init__(self, engines: dict[str, Odd], database: Database, urls: dict[str, str], *arguments: Any) -> None:
        super().__init__(engines["a"], *arguments)
        self.engines = engines
        self.urls = urls
        self.database = database

    def announce(self, name: str, **changes: Any) -> None:
        """Write the row of a replica."""
        row = EngineReplica(
            name, "demo", self.urls[name], "millrace", "local", "serving", {"live": 3, "candidate": None},
            frozenset({"spans", "logprobs", "seed"}), f"start of {name}", "fake/1", "float32", 0.0,
        )  # fmt: skip
        with self.database.transaction() as connection:
            announce(connection, row._replace(**changes))

    def tell(self, name: str, **changes: Any) -> None:
        """Write the row of a replica, and wait until the endpoint has read it."""
        self.announce(name, **changes)
        self.settle()

    def settle(self) -> None:
        """Wait until the endpoint has read the rows of now."""
        with self.database.snapshot() as connection:
            wanted = {row.name: row for row in read_replicas(connection, "demo")}
        pool = self.pool
        wait_until(lambda: self.is_known(pool, wanted))

    def is_known(self, pool: Any, wanted: dict[str, EngineReplica]) -> bool:
        self.client.models.list()  # reads rows that are old
        return {name: member.row for name, member in pool._members.items()} == wanted

    pool: Any

    def asked(self) -> dict[str, int]:
        """How many requests each replica got."""
        return {name: len(engine.requests) for name, engine in self.engines.items()}

    def out(self) -> dict[str, str]:
        """Replicas out of rotation, and why."""
        members = self.pool._members
        return {name: member.reason for name, member in members.items() if member.reason is not None}


@pytest.fixture(scope="module")
def stages() -> Iterator[dict[str, Stage]]:
    with ExitStack() as stack:
        stages = {name: Stage() for name in NAMES}
        for stage in stages.values():
            stage.url = stack.enter_context(serve(stage))
        yield stages


@pytest.fixture
def replicas(
    tmp_path: Path, database: Database, stages: dict[str, Stage], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Replicas]:
    monkeypatch.setattr(rows, "_READ_SECONDS", 0.05)
    monkeypatch.setattr(arms, "_READ_SECONDS", -1.0)
    make_base(tmp_path / "base")
    engines = {name: Odd(TEXT) for name in NAMES}
    for name, stage in stages.items():
        stage.engine = engines[name]
    log = StubbornLog(tmp_path / "log")
    keys = make_key(database), make_key(database, "operator")
    urls = {name: stage.url for name, stage in stages.items()}
    app = create_app(make_home(tmp_path), event_log=log, patience_seconds=3.0)
    with database.transaction() as connection:
        move(connection, policy="demo", arm=LIVE, version=3, expected_epoch=0, writer="test", reason="test", share=1.0)
    with serve(app) as url:
        world = Replicas(engines, database, urls, log, url, *keys)
        world.pool = app.state.engines
        for name in NAMES:
            with database.transaction() as connection:
                announce(
                    connection,
                    EngineReplica(
                        name, "demo", urls[name], "millrace", "local", "serving", {"live": 3, "candidate": None},
                        frozenset({"spans", "logprobs", "seed"}), f"start of {name}", "fake/1", "float32", 0.0,
                    ),
                )  # fmt: skip
        world.settle()
        yield world
        for engine in engines.values():
            engine.go.set()
        world.client.close()


def test_replicas_that_compile_a_schema_are_not_taken_for_silent(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_ACCEPT_SECONDS", 0.05)
    for name, engine in replicas.engines.items():
        replicas.tell(name, abilities=frozenset({"spans", "logprobs", "constraints"}))
        engine.mute = True

    def compiled() -> None:
        for engine in replicas.engines.values():
            engine.mute = False

    threading.Timer(0.5, compiled).start()
    assert text_of(replicas.ask(response_format={"type": "json_object"})) == TEXT
    assert sum(replicas.asked().values()) == 1
    assert replicas.out() == {}


def test_what_vllm_says_behind_the_last_token_is_read_and_nothing_waits_for_it(replicas: Replicas) -> None:
    for name, engine in replicas.engines.items():
        engine.tells_cached_last = True
        replicas.tell(name, kind="vllm")
    for stream in (False, True):
        for cached in ([], [12]):
            for engine in replicas.engines.values():
                engine.cached = cached
            options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            answer = replicas.ask(**options)
            usage = list(answer)[-1].usage if stream else answer.usage
            assert usage.prompt_tokens_details.cached_tokens == sum(cached)
    assert replicas.out() == {}
    sent = [request for engine in replicas.engines.values() for request in engine.requests]
    assert {request["stream_options"]["include_usage"] for request in sent} == {True}
    assert len({request["cache_salt"] for request in sent}) == 1
    before = time.monotonic()
    for engine in replicas.engines.values():
        engine.tells_cached_last, engine.cached = False, []  # only [DONE] comes
    assert replicas.ask().usage.prompt_tokens_details.cached_tokens == 0
    assert time.monotonic() - before < PATIENCE_SECONDS


def test_both_replicas_are_asked_and_a_session_stays(replicas: Replicas) -> None:
    for number in range(12):
        replicas.ask(metadata={"session_id": f"one-{number}"})
    assert min(replicas.asked().values()) > 0, "2 * 2**-12 is the chance that all sessions go one way"
    before = replicas.asked()
    for _ in range(6):
        replicas.ask(metadata={"session_id": "the same"})
    assert sorted(after - before[name] for name, after in replicas.asked().items()) == [0, 6]
    assert {record.engine for record in replicas.logged()} == {"fake/1"}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("oddity", "reason"), [("refuses", "not_serving"), ("no_choices", "unusable_answer"), ("lies", "wrong_version")]
)
def test_a_request_without_a_token_moves(replicas: Replicas, oddity: str, reason: str, stream: bool) -> None:
    replicas.engines["a"].oddity = oddity
    while not replicas.engines["a"].requests:
        assert text_of(replicas.ask(stream=stream)) == TEXT
    assert replicas.out() == {"a": reason}
    [record] = replicas.logged()[-1:]
    assert record.spans == (Span(0, 3),)
    count = len(replicas.engines["a"].requests)
    for _ in range(3):
        replicas.ask()
    assert len(replicas.engines["a"].requests) == count, "it is out of rotation"
    replicas.engines["a"].oddity = ""
    wait_until(lambda: replicas.out() == {})


@pytest.mark.parametrize("told_last", [False, True])
def test_a_version_that_was_assigned_shorter_than_a_row_lasts_is_not_a_lie(replicas: Replicas, told_last: bool) -> None:
    """An engine that takes v4 and v5 at once answers with v4 meanwhile, and its row never names v4."""
    for name, engine in replicas.engines.items():
        engine.resident, engine.version, engine.tells_version_last = {4, 5}, 4, told_last
        replicas.tell(name, slots={"live": 5, "candidate": None})
    with replicas.database.transaction() as connection:
        for version in (4, 5):
            move(
                connection, policy="demo", arm=LIVE, version=version, expected_epoch=version - 3, writer="t", reason="t"
            )
    assert replicas.ask().policy_version == 4
    assert replicas.out() == {}


def test_a_replica_that_is_full_stays_in_rotation(replicas: Replicas) -> None:
    replicas.engines["a"].oddity = "overloaded"
    while not replicas.engines["a"].requests:
        assert text_of(replicas.ask()) == TEXT
    assert replicas.out() == {}
    replicas.engines["b"].oddity = "overloaded"
    with pytest.raises(openai.RateLimitError) as caught:
        replicas.ask()
    assert caught.value.code == "engine_overloaded"


def test_a_request_that_no_replica_can_answer_takes_none_out(replicas: Replicas) -> None:
    for engine in replicas.engines.values():
        engine.oddity = "no_choices"
    with pytest.raises(openai.InternalServerError) as caught:
        replicas.ask()
    assert caught.value.code == "engine_failed"
    assert replicas.asked() == {"a": 1, "b": 1}
    assert replicas.out() == {}


def test_an_answer_goes_on_at_another_replica(replicas: Replicas) -> None:
    replicas.engines["a"].survives = True
    replicas.tell("b", status="paused")
    replicas.engines["a"].hold_after = 4
    answer = replicas.ask(stream=True)
    chunks = [next(answer)]
    replicas.tell("b", status="serving")
    replicas.engines["a"].die_after = 5
    replicas.engines["a"].go.set()
    chunks += list(answer)

    assert text_of(chunks) == TEXT
    [first], [second] = replicas.engines["a"].requests, replicas.engines["b"].requests
    assert second["token_ids"] == first["token_ids"] + replicas.engines["a"].answer[:5]
    assert second["num_made"] == 5
    [record] = replicas.logged()
    assert record.spans == (Span(0, 3),), "the same version goes on"
    assert unpack_ids(record.open().completion_ids) == replicas.engines["a"].answer
    assert replicas.out() == {"a": "lost"}


def test_an_answer_leaves_a_frozen_replica_although_nobody_else_asks(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_MOVE_SECONDS", 0.3)
    replicas.tell("b", status="paused")
    replicas.engines["a"].survives, replicas.engines["a"].hold_after = True, 4
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(replicas.ask)
        wait_until(lambda: replicas.engines["a"].requests)
        replicas.tell("b", status="serving")
        replicas.announce("a", status="failed")
        try:
            assert text_of(answer.result(PATIENCE_SECONDS)) == TEXT
        finally:
            replicas.engines["a"].go.set()
    assert replicas.asked() == {"a": 1, "b": 1}


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_whose_first_engine_was_lost_before_it_told_its_version_names_none(
    replicas: Replicas, stream: bool
) -> None:
    for engine in replicas.engines.values():
        engine.tells_version_last = True
    whole = replicas.ask(stream=stream)
    last = list(whole)[-1] if stream else whole
    assert (last.policy_version, last.system_fingerprint) == (3, "demo@v3")

    for engine in replicas.engines.values():
        engine.die_after = 5
    answer = replicas.ask(stream=stream)
    parts = list(answer) if stream else [answer]

    assert text_of(parts if stream else answer) == TEXT
    assert {(part.policy_version, part.system_fingerprint) for part in parts} == {(None, None)}
    assert [record.spans for record in replicas.logged()] == [(Span(0, 3),), ()]


def test_a_dead_address_costs_nothing(replicas: Replicas) -> None:
    replicas.urls["a"] = "http://127.0.0.1:1"
    replicas.tell("a")
    for _ in range(8):
        assert text_of(replicas.ask()) == TEXT
    assert replicas.out() == {"a": "unreachable"}


@pytest.mark.slow
def test_another_region_answers_only_while_the_own_one_does_not(replicas: Replicas) -> None:
    replicas.tell("a", region="far")
    for _ in range(6):
        replicas.ask()
    assert replicas.asked() == {"a": 0, "b": 6}
    replicas.tell("b", status="failed")
    replicas.ask()
    assert replicas.asked() == {"a": 1, "b": 6}


def test_a_version_goes_to_a_replica_that_holds_it(replicas: Replicas) -> None:
    with replicas.database.transaction() as connection:
        move(connection, policy="demo", arm=CANDIDATE, version=5, expected_epoch=0, writer="t", reason="t", share=0.0)
    replicas.engines["b"].resident = {3, 5}
    replicas.tell("b", slots={"live": 3, "candidate": 5})
    for _ in range(4):
        replicas.ask(model="demo@v5")
    assert replicas.asked() == {"a": 0, "b": 4}
    with pytest.raises(openai.NotFoundError) as caught:
        replicas.ask(model="demo@v4")
    assert caught.value.code == "version_not_resident"
    assert [model.id for model in replicas.client.models.list().data] == ["demo", "demo@v3", "demo@v5"]


def drawn_canary(replicas: Replicas, **slots: dict[str, int | None]) -> None:
    """Every user is drawn for the canary v5, which the replicas hold as `slots` says."""
    with replicas.database.transaction() as connection:
        move(connection, policy="demo", arm=CANARY, version=5, expected_epoch=0, writer="t", reason="t", share=1.0)
    for name, held in slots.items():
        replicas.engines[name].resident = {version for version in held.values() if version is not None}
        replicas.tell(name, slots=held)


def test_a_canary_answers_from_its_own_slot(replicas: Replicas) -> None:
    """Another slot with the version may be swapped at any moment."""
    drawn_canary(replicas, a={"live": 3, "learning": 5}, b={"live": 3, "canary": 5})
    for _ in range(5):
        replicas.ask()
    assert replicas.asked() == {"a": 0, "b": 5}
    assert {(asked["model"], asked["arm"]) for asked in replicas.engines["b"].requests} == {("demo@v5", "canary")}


@pytest.mark.slow
def test_another_regions_canary_is_not_drawn_here(replicas: Replicas) -> None:
    """The distance would make the canary look slow."""
    replicas.tell("b", region="far")
    drawn_canary(replicas, a={"live": 3, "canary": None})
    replicas.engines["b"].resident = {3, 5}
    replicas.tell("b", slots={"live": 3, "canary": 5}, region="far")
    replicas.ask()
    replicas.tell("a", status="failed")
    replicas.ask()
    assert [record.arm for record in replicas.logged()] == ["live", "canary"]


@pytest.mark.slow
@pytest.mark.parametrize("oddity", ["refuses", "overloaded"])
def test_a_canary_that_cannot_answer_costs_neither_its_users_nor_others(replicas: Replicas, oddity: str) -> None:
    drawn_canary(replicas, a={"live": 3}, b={"live": 3, "canary": 5})
    replicas.engines["b"].oddity = oddity
    answer = replicas.ask()
    assert answer.policy_version == 3
    [record] = replicas.logged()
    assert (record.arm, record.arm_probability, record.spans) == ("canary", 1.0, (Span(0, 3),))
    assert replicas.out() == {}, "the replica still serves live"


@pytest.mark.slow
def test_live_goes_on_with_the_answer_of_a_canary_that_died(replicas: Replicas) -> None:
    drawn_canary(replicas, a={"live": 3}, b={"live": 3, "canary": 5})
    replicas.engines["b"].die_after = 4
    answer = replicas.ask()
    assert answer.choices[0].message.content == TEXT
    [record] = replicas.logged()
    assert (record.arm, record.spans) == ("canary", (Span(0, 5), Span(4, 3)))


@pytest.mark.slow
def test_a_request_that_named_the_canarys_version_is_not_given_another(replicas: Replicas) -> None:
    drawn_canary(replicas, a={"live": 3}, b={"live": 3, "canary": 5})
    replicas.engines["b"].oddity = "overloaded"
    with pytest.raises(openai.RateLimitError):
        replicas.ask(model="demo@v5")


@pytest.mark.slow
def test_a_version_that_only_a_replica_out_of_rotation_has_is_a_503_that_names_it(replicas: Replicas) -> None:
    replicas.engines["a"].oddity = "lies"
    replicas.tell("a", slots={"live": 3, "candidate": 77})
    with pytest.raises(openai.APIStatusError) as refused:
        replicas.ask(model="demo@v77")
    assert (refused.value.status_code, refused.value.code) == (503, "unavailable")
    assert "a: " in refused.value.message


@pytest.mark.slow
def test_a_version_asked_for_while_every_replica_loads_is_waited_for(replicas: Replicas) -> None:
    for name in NAMES:
        replicas.tell(name, status="starting", slots={"live": None, "candidate": None})
    loaded = threading.Timer(0.5, lambda: replicas.tell("b"))
    loaded.start()
    replicas.ask(model="demo@v3")
    loaded.join()
    assert replicas.asked() == {"a": 0, "b": 1}


def test_an_ability_that_no_replica_has_is_named(replicas: Replicas) -> None:
    for name in NAMES:
        replicas.tell(name, abilities=frozenset({"spans"}))
    with pytest.raises(openai.BadRequestError, match=r"no engine here supports seed") as caught:
        replicas.ask(seed=7, metadata={"task": "private"})
    assert caught.value.param == "seed"
    assert replicas.asked() == {"a": 0, "b": 0}


def test_raw_logprobs_are_recorded_as_such(replicas: Replicas) -> None:
    for name in NAMES:
        replicas.tell(name, abilities=frozenset({"spans"}))
    replicas.ask()
    assert replicas.logged()[0].sampling.raw_logprobs


def test_adapters_are_asked_for_by_name_and_their_tokens_are_of_that_version(replicas: Replicas) -> None:
    for name, engine in replicas.engines.items():
        engine.labels_base, engine.resident = True, {3, 4}
        abilities = frozenset({"spans", "logprobs", "adapters"})
        replicas.tell(name, kind="vllm", abilities=abilities, slots={"live": 3, "candidate": 4})
    replicas.ask()
    replicas.ask(model="demo@v4")
    asked = [request["model"] for engine in replicas.engines.values() for request in engine.requests]
    assert sorted(asked) == ["demo@v3", "demo@v4"]
    assert {tuple(logged.spans) for logged in replicas.logged()} == {(Span(0, 3),), (Span(0, 4),)}


@pytest.mark.slow
@pytest.mark.parametrize(("has", "num_drawable", "is_known"), [(True, 3, True), (True, 65, False), (False, 3, False)])
def test_what_a_truncated_answer_was_drawn_from_is_recorded(
    replicas: Replicas, has: bool, num_drawable: int, is_known: bool
) -> None:
    for name in NAMES:
        replicas.tell(name, abilities=frozenset({"spans", "logprobs", "top_logprobs", *(["support"] if has else [])}))
        replicas.engines[name].num_drawable = num_drawable
    answer = replicas.ask(
        top_p=0.5, logprobs=True, top_logprobs=2, metadata={"task": "private"}, store=True, max_completion_tokens=4
    )
    assert [len(token.top_logprobs) for token in answer.choices[0].logprobs.content] == [2] * 4, "as many as asked for"
    body = replicas.logged()[0].open()
    made = unpack_ids(body.completion_ids)
    found = support_of(body.support, len(made)).tolist() if body.support else None
    assert found == ([[token_id, token_id + 1, token_id + 2] for token_id in made] if is_known else None)


def test_a_new_replica_is_asked_and_one_that_withdraws_is_not(replicas: Replicas) -> None:
    with replicas.database.transaction() as connection:
        withdraw(connection, "demo", "a", "start of a")
    replicas.settle()
    for _ in range(4):
        replicas.ask()
    assert replicas.asked() == {"a": 0, "b": 4}
    replicas.tell("a")
    wait_until(lambda: (replicas.ask(), replicas.asked()["a"])[1] > 0)


def test_nothing_is_a_503_while_a_replica_comes_back(replicas: Replicas) -> None:
    for engine in replicas.engines.values():
        engine.oddity = "refuses"
    replicas.engines["a"].serving = replicas.engines["b"].serving = False

    def heal() -> None:
        wait_until(lambda: len(replicas.out()) == 2)
        replicas.engines["b"].oddity, replicas.engines["b"].serving = "", True

    healing = threading.Thread(target=heal)
    healing.start()
    assert text_of(replicas.ask()) == TEXT
    healing.join()


def test_users_count_while_an_engine_works_for_them(tmp_path: Path, database: Database, stage: Stage) -> None:
    engine, settings = FakeEngine(SAYS), make_home(tmp_path, stage.url)
    make_base(tmp_path / "base")
    write_settings(settings, {"gpu": GpuSettings(added_p99_ms=50)})
    waiting = WaitingUsers(settings)
    with a_service(settings, database, stage, engine) as asking, ThreadPoolExecutor(3) as threads:
        assert waiting.num() == 0
        engine.hold_after = 2
        rollout = {"x-millrace-purpose": "rollout"}
        asked = [threads.submit(asking.ask), threads.submit(asking.ask)]
        asked.append(threads.submit(asking.ask, asking.operator, extra_headers=rollout))
        wait_until(lambda: len(engine.requests) == 3)
        assert waiting.num() == 2
        assert REGISTRY.get_sample_value("millrace_users_in_flight", {"policy": settings.policy}) == 2.0
        engine.go.set()
        assert [text_of(each.result()) for each in asked] == [SAYS] * 3
        wait_until(lambda: waiting.num() == 0)


def test_a_home_without_a_budget_writes_nothing(tmp_path: Path, database: Database, stage: Stage) -> None:
    settings = make_home(tmp_path, stage.url)
    make_base(tmp_path / "base")
    with a_service(settings, database, stage, FakeEngine(SAYS)) as asking:
        asking.ask()
    assert not (tmp_path / "users").exists()
