"""Users of the endpoint get their arm by a draw that sticks; engines that do not hold it cost nobody an error or a wait."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from contracts import revocations
from contracts.arms import draw_arm, read_arm_secret, unit_of
from contracts.assignments import CANARY, HOLDOUT, LEARNING, LIVE, move, read
from contracts.draws import DrawnVersion, hash_of
from contracts.records import Generation
from contracts.sampling import Span
from runtime.database import Database
from services.inference import arms
from services.inference.app import create_app
from services.inference.engine import rows
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.test_versions_asked import assign
from tests.unit.services.inference.world import FakeEngine, Stage, StubbornLog
from tests.unit.services.serving import make_home, serve, wait_until

pytestmark = pytest.mark.usefixtures("alone")
SLOTS: dict[str, int | None] = {LIVE: 3, "candidate": None, LEARNING: 6, CANARY: 5, HOLDOUT: 1}
HELD = {3, 6, 5, 1}


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine("ok")
    engine.slots, engine.resident = SLOTS, HELD
    return engine


@pytest.fixture
def drawn(inference: Inference, database: Database, monkeypatch: pytest.MonkeyPatch) -> Inference:
    """An endpoint with a hold-out of 20%, a learning arm of 20% and a canary of 50%. It reads the assignments for each request."""
    monkeypatch.setattr(arms, "_READ_SECONDS", -1.0)
    monkeypatch.setattr(rows, "_READ_SECONDS", 0.05)
    for arm, version, share in ((LIVE, 3, 0.0), (HOLDOUT, 1, 0.2), (LEARNING, 6, 0.2), (CANARY, 5, 0.5)):
        assign(database, version, arm, share)
    wait_until(lambda: inference.holds(5))
    return inference


def newest(inference: Inference, number: int = 1) -> list[Generation]:
    """The newest records, oldest first."""
    return inference.logged()[-number:]


def test_people_keep_the_arm_of_the_draw_and_its_version_answers(drawn: Inference, database: Database) -> None:
    with database.snapshot() as connection:
        assigned, secret = read(connection, "demo"), read_arm_secret(connection)
    names = [f"person {number}" for number in range(200)]
    by_arm = {draw_arm(assigned, f"default/{name}", secret).arm: name for name in names}
    found = Counter[str]()
    for person in [*names[:6], *by_arm.values()]:
        drawn.ask(user=person)
        drawn.ask(extra_body={"safety_identifier": person})
        first, second = newest(drawn, 2)
        assert (first.arm, first.arm_probability) == (second.arm, second.arm_probability)
        unit = unit_of("user", tenant=first.tenant, person=person, session_id=None, completion_id=first.completion_id)
        assert (first.arm, first.arm_probability) == draw_arm(assigned, unit.name, secret)
        held = SLOTS[first.arm]
        assert held is not None
        assert first.spans == (Span(0, held),)
        asked = drawn.engine.requests[-1]
        assert (asked["model"], asked.get("arm")) == (
            ("demo", None) if first.arm == LIVE else (f"demo@v{held}", first.arm)
        )
        found[first.arm] += 1
    assert set(found) == {LIVE, LEARNING, CANARY, HOLDOUT}


def test_a_session_has_one_arm_whoever_its_calls_name(drawn: Inference) -> None:
    for number in range(8):
        session = {"session_id": f"visit {number}"}
        drawn.ask(metadata=session)
        drawn.ask(metadata=session, user=f"anna {number}")
        drawn.ask(metadata=session, user=f"ben {number}", store=False)
        drawn.ask(metadata=session)
    records = newest(drawn, 24)
    for number in range(8):
        assert len({(one.arm, one.arm_probability) for one in records if one.session_id == f"visit {number}"}) == 1
    assert len({record.arm for record in records}) > 1


@pytest.mark.slow
def test_without_a_person_or_a_session_each_answer_is_drawn(drawn: Inference) -> None:
    for _ in range(40):
        drawn.ask()
    records = newest(drawn, 40)
    shares = {record.arm: record.arm_probability for record in records}
    assert shares == pytest.approx({LIVE: 0.32, CANARY: 0.32, LEARNING: 0.16, HOLDOUT: 0.2})


def test_messages_of_anthropics_form_are_drawn_by_their_user_id(drawn: Inference) -> None:
    body = {"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
    found = {}
    for number in range(6):
        sent = body | {"metadata": {"user_id": f"anna {number}"}}
        answer = httpx.post(f"{drawn.url}/v1/messages", json=sent, headers={"x-api-key": drawn.key}, timeout=10.0)
        assert answer.status_code == 200
        drawn.ask(user=f"anna {number}")
        one, other = newest(drawn, 2)
        assert one.arm == other.arm
        found[number] = one.arm
    assert len(set(found.values())) > 1


def test_whoever_names_a_version_is_not_drawn(drawn: Inference) -> None:
    for version, arm in ((3, LIVE), (5, CANARY), (6, LEARNING), (1, HOLDOUT)):
        drawn.ask(model=f"demo@v{version}", user="anna")
        drawn.ask(metadata={"exact_version": str(version)}, user="anna")
        for record in newest(drawn, 2):
            assert (record.arm, record.arm_probability, record.spans) == (arm, 1.0, (Span(0, version),))
    drawn.ask(metadata={"min_version": "2"}, user="anna")
    assert newest(drawn)[0].arm == LIVE
    drawn.ask(metadata={"min_version": "6"}, user="anna")
    assert (newest(drawn)[0].arm, newest(drawn)[0].arm_probability) == (LEARNING, 1.0)


@pytest.mark.parametrize("purpose", ["rollout", "sentinel", "shadow"])
def test_only_users_are_drawn(drawn: Inference, purpose: str) -> None:
    for number in range(6):
        drawn.ask(drawn.operator, user=f"person {number}", extra_headers={"x-millrace-purpose": purpose})
    assert {(record.purpose, record.arm, record.arm_probability) for record in newest(drawn, 6)} == {
        (purpose, LIVE, 1.0)
    }


def test_a_version_that_loads_gets_nobody_until_a_slot_holds_it(drawn: Inference, database: Database) -> None:
    engine = drawn.engine
    assign(database, 7, CANARY, 0.5)  # the engine still holds v5
    for number in range(12):
        drawn.ask(user=f"person {number}")
    found = {record.arm: round(record.arm_probability, 3) for record in newest(drawn, 12)}
    assert found == {name: {LIVE: 0.64, LEARNING: 0.16, HOLDOUT: 0.2}[name] for name in found}
    engine.slots, engine.resident = SLOTS | {CANARY: 7}, HELD | {7}
    wait_until(lambda: drawn.holds(7))
    for number in range(12):
        drawn.ask(user=f"person {number}")
    assert (Span(0, 7),) in [record.spans for record in newest(drawn, 12)]


def test_a_revoked_version_is_gone_although_its_slot_still_holds_it(drawn: Inference, database: Database) -> None:
    with database.transaction() as connection:
        revocations.revoke(connection, "demo", [5], treatment="evidence", writer="release", reason="worse")
        epoch = read(connection, "demo")[CANARY].epoch
        move(
            connection, policy="demo", arm=CANARY, version=None, expected_epoch=epoch, writer="release", reason="worse"
        )
    wait_until(lambda: not drawn.holds(5))
    for asked in ({"model": "demo@v5"}, {"metadata": {"exact_version": "5"}}):
        with pytest.raises(openai.ConflictError, match="was revoked and never serves again") as caught:
            drawn.ask(**asked)
        assert caught.value.code == "version_revoked"
    for number in range(12):
        drawn.ask(user=f"person {number}")
    assert {record.arm for record in newest(drawn, 12)} <= {LIVE, LEARNING, HOLDOUT}
    assert (drawn.engine.slots or {})[CANARY] == 5


def test_without_a_slot_an_arm_gets_nobody(drawn: Inference) -> None:
    drawn.engine.slots, drawn.engine.resident = {LIVE: 3, "candidate": None}, {3}
    wait_until(lambda: not drawn.holds(5))
    for number in range(12):
        drawn.ask(user=f"person {number}")
    assert {(record.arm, record.arm_probability) for record in newest(drawn, 12)} == {(LIVE, 1.0)}


def test_live_answers_for_an_arm_that_was_lost_and_the_record_keeps_the_draw(drawn: Inference) -> None:
    """The endpoint does not know yet that the canary is gone when it draws."""
    drawn.engine.resident = {3}
    records = []
    for number in range(12):
        drawn.ask(user=f"person {number}")  # whoever waited for the arm would be refused in the end
        records += newest(drawn)
    assert {record.arm for record in records} > {LIVE}
    assert {record.spans for record in records} == {(Span(0, 3),)}
    assert {record.draw.version for record in records if record.draw and record.arm == CANARY} == {5}


def test_the_record_keeps_all_of_the_draw_as_it_was_made(drawn: Inference) -> None:
    drawn.ask(user="anna", metadata={"session_id": "s"})
    drawn.ask(user="ben", metadata={"session_id": "s"})
    drawn.ask(model="demo@v5", user="anna")
    first, second, named = newest(drawn, 3)
    assert first.draw is not None
    assert first.draw == second.draw, "a session is of the person who began it"
    assert (first.draw.unit, first.draw.unit_kind) == (hash_of("default/anna"), "user")
    assert (first.draw.canary, first.draw.holdout) == (DrawnVersion(5, 0.5), DrawnVersion(1, 0.2))
    assert first.draw.version == SLOTS[first.arm]
    assert first.draw.api_key == drawn.key.split("-")[2], "its id, not its secret"
    assert named.draw is None


def test_an_arm_that_gives_no_token_is_logged_as_failed_without_words_or_names(drawn: Inference) -> None:
    drawn.engine.full = True
    for number in range(12):
        with pytest.raises(openai.RateLimitError):
            drawn.ask(user=f"person {number}", metadata={"session_id": f"s{number}", "join_key": "k"})
    wait_until(lambda: len(drawn.logged()) == 12)
    records = drawn.logged()
    assert {record.arm for record in records} > {LIVE}
    assert {(record.finish_reason, record.spans, record.session_id, record.join_key) for record in records} == {
        ("error", (), None, None)
    }
    bodies = [record.open() for record in records]
    assert [(body.messages, body.metadata, body.prompt_ids, body.text) for body in bodies] == [([], {}, b"", "")] * 12
    people = {hash_of(f"default/person {number}") for number in range(12)}
    assert {record.draw.unit for record in records if record.draw is not None} == people


def test_a_client_that_left_before_the_first_token_counts_as_well(drawn: Inference) -> None:
    drawn.engine.hold_after = 0
    with pytest.raises(openai.APITimeoutError):
        drawn.ask(drawn.client.with_options(timeout=0.3), user="anna")
    wait_until(lambda: [record.finish_reason for record in drawn.logged()] == ["cancelled"])


def test_what_no_arm_can_answer_and_what_was_not_drawn_leaves_no_record(drawn: Inference) -> None:
    drawn.engine.refusal = {"message": "no such field", "code": "invalid_request", "param": "top_k"}
    with pytest.raises(openai.BadRequestError):
        drawn.ask(user="anna")
    drawn.engine.refusal, drawn.engine.full = None, True
    with pytest.raises(openai.RateLimitError):
        drawn.ask(user="anna", model="demo@v5")
    with pytest.raises(openai.RateLimitError):
        drawn.ask(user="anna", store=False)
    time.sleep(0.2)
    assert drawn.logged() == []


@pytest.fixture
def by_session(drawn: Inference, tmp_path: Path, stage: Stage) -> Iterator[Inference]:
    log = StubbornLog(tmp_path / "another log")
    with serve(create_app(make_home(tmp_path, stage.url), event_log=log, unit="session")) as url:
        yield Inference(drawn.engine, log, url, drawn.key, "")


def test_the_unit_is_a_setting(by_session: Inference) -> None:
    for number in range(12):
        by_session.ask(user="always anna", metadata={"session_id": f"visit {number}"})
    assert len({record.arm for record in newest(by_session, 12)}) > 1
