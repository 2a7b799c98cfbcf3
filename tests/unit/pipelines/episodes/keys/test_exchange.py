"""Signals about keys, from feedback's real tables to the join."""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import insert, select

from contracts.ledger import num_waiting
from contracts.records import Signal, decode
from contracts.tables import join_key, received_signal, signal, waiting_signal
from pipelines.episodes.join import ORPHAN_SECONDS
from pipelines.episodes.keys.exchange import KEY_SECONDS, RETRACTED_SECONDS
from runtime.database import Database
from tests.fakes import a_generation
from tests.unit.pipelines.episodes.bench import Join, a_task
from tests.unit.pipelines.episodes.keys.test_rules import IDS, said

TASK = a_task(
    {
        "accepted": {"type": "bool", "labels": {"true": 1.0}},
        "merged": {"means": "outcome"},
        "reply": {"means": "follow_up"},
        "ended": {"means": "abandoned"},
    }
)


@pytest.fixture
def join(database: Database) -> Join:
    return Join(database, TASK)


def about(join: Join) -> dict[str, str]:
    """The sample that each signal is about, as the join has it."""
    with join.database.snapshot() as connection:
        rows = connection.execute(select(signal.c.id, signal.c.completion_id, signal.c.choice)).all()
    return {row.id: f"{row.completion_id}:{row.choice}" for row in rows}


def num_kept(join: Join) -> int:
    with join.database.snapshot() as connection:
        return num_waiting(connection)


def test_a_signal_about_a_key_reaches_the_answer_that_has_it(join: Join) -> None:
    first, second = a_generation(join_key="order 1"), a_generation(join_key="order 2", choice=1)
    join.hear(first, second)
    join.receive({"id": "a", "join_key": "order 2"})
    assert about(join) == {"a": second.key}
    assert join.counts() == {"joined": 1}


def test_a_signal_that_came_first_waits_for_its_answer(join: Join) -> None:
    join.receive({"id": "a", "join_key": "order 1"}, {"id": "b", "join_key": "order 2"})
    assert (join.counts(), num_kept(join)) == ({"pending": 2}, 2)
    answer = a_generation(join_key="order 1")
    (episode,) = join.hear(answer)
    assert [item.id for item in episode.signals] == ["a"]
    assert (join.counts(), num_kept(join)) == ({"pending": 1, "joined": 1}, 1)
    with join.database.snapshot() as connection:
        wire = connection.execute(select(received_signal.c.record).where(received_signal.c.id == "a")).scalar_one()
    assert decode(Signal, wire).key == answer.key, "feedback knows it too"


def test_what_waited_is_late_or_not_by_when_it_was_received(join: Join) -> None:
    join.receive({"id": "a", "join_key": "k"}, at=111.5)
    join.now = 150.0
    join.hear(a_generation(join_key="k"))
    assert join.counts() == {"late": 1}


def test_the_signal_of_a_session_is_about_its_newest_answer(join: Join) -> None:
    turns = [a_generation(session_id="s", completion_id=completion_id) for completion_id in IDS]
    join.hear(turns[0])
    join.hear(turns[2], turns[1])
    join.receive({"id": "end", "session_id": "s", "name": "ended"})
    assert join.counts() == {"pending": 1}
    join.wait(105.0)
    assert about(join)["end"] == turns[2].key


def made_at(seconds: float) -> str:
    return f"chatcmpl-{UUID(int=int(seconds * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | 1)}"


def test_a_signal_about_a_session_means_the_answer_before_it_though_that_is_still_on_its_way(join: Join) -> None:
    first, second = (a_generation(session_id="s", completion_id=made_at(at)) for at in (90.0, 101.0))
    join.hear(first)
    join.receive({"id": "end", "session_id": "s", "name": "ended"}, at=102.0)
    join.hear(second)
    assert join.counts() == {"pending": 1}, "a third may be on its way too"
    join.wait(103.9)
    assert join.counts() == {"pending": 1}
    join.wait(104.1)
    assert about(join)["end"] == second.key


def test_a_later_answer_tells_at_once_which_was_the_last(join: Join) -> None:
    turns = [a_generation(session_id="s", completion_id=made_at(at)) for at in (90.0, 101.0, 102.5)]
    join.receive({"id": "end", "session_id": "s", "name": "ended"}, at=102.0)
    join.hear(*turns)
    assert about(join)["end"] == turns[1].key


def test_while_there_is_more_to_read_nobody_says_which_was_the_last(join: Join) -> None:
    first, second = (a_generation(session_id="s", completion_id=made_at(at)) for at in (90.0, 101.0))
    join.receive({"id": "end", "session_id": "s", "name": "ended"}, at=102.0)
    join._handler.batch_size = 1
    join.hear(first)
    join.wait(300.0)
    assert join.counts() == {"pending": 1}
    join._handler.batch_size = 500
    join.hear(second)
    join.wait(301.0)
    assert about(join)["end"] == second.key


def test_a_session_and_a_key_of_one_name_are_two_things(join: Join) -> None:
    join.hear(a_generation(session_id="x"))
    join.receive({"id": "a", "join_key": "x"})
    assert join.counts() == {"pending": 1}


def test_tenants_never_meet_under_one_key(join: Join) -> None:
    join.hear(a_generation(join_key="k", tenant="acme"))
    join.receive({"id": "a", "join_key": "k"}, tenant="other")
    assert (join.counts(), num_kept(join)) == ({"pending": 1}, 1)
    ours = a_generation(join_key="k", tenant="other")
    join.hear(ours)
    assert about(join) == {"a": ours.key}


def test_an_id_is_taken_once_whether_it_waits_or_not(join: Join) -> None:
    item = {"id": "a", "join_key": "k"}
    join.receive(item, item)
    join.hear(a_generation(join_key="k"))
    join.receive(item, item | {"join_key": "other"})
    assert join.counts() == {"joined": 1, "duplicate": 2, "conflict": 1}


def test_what_is_taken_back_while_it_waits_teaches_nothing(join: Join) -> None:
    join.receive({"id": "a", "join_key": "k"}, {"id": "b", "join_key": "other"})
    join.take_back("a")
    join.take_back("b")
    assert join.hear(a_generation(join_key="k")) == []
    assert join.counts() == {"retracted": 1, "pending": 1}
    join.wait(104.0)
    assert join.counts() == {"retracted": 1, "pending": 1}, "its answer may still come, and was received"
    join.wait(104.0 + RETRACTED_SECONDS)
    assert join.counts() == {"retracted": 2}, "what nobody waits for any more has its name"
    assert num_kept(join) == 0


def test_what_is_taken_back_after_its_answer_came_is_retracted(join: Join) -> None:
    join.receive({"id": "a", "join_key": "k"})
    join.hear(a_generation(join_key="k"))
    join.take_back("a")
    assert join.counts() == {"retracted": 1}
    assert join.states() == {"a": "retracted"}


def test_whoever_waited_in_vain_is_rejected_and_stays_so(join: Join) -> None:
    join.receive({"id": "a", "join_key": "k"})
    join.wait(102.0 + ORPHAN_SECONDS)
    assert join.counts() == {"pending": 1}
    join.wait(102.0 + ORPHAN_SECONDS + 61.0)
    assert join.counts() == {"rejected": 1}
    join.hear(a_generation(join_key="k"))
    assert join.counts() == {"rejected": 1}
    with join.database.snapshot() as connection:
        assert connection.execute(select(signal.c.reason, signal.c.completion_id)).one() == ("never_logged", "")


def test_who_looked_before_the_answer_was_there_is_found_within_a_minute(join: Join) -> None:
    answer = a_generation(join_key="k")
    join.receive({"id": "a", "join_key": "k"})
    with join.database.transaction() as connection:  # as a transaction of feedback that the join could not see yet
        kept = connection.execute(select(waiting_signal)).mappings().one()
        connection.execute(waiting_signal.delete())
    join.hear(answer)
    with join.database.transaction() as connection:
        connection.execute(insert(waiting_signal).values(**kept))
    (episode,) = join.wait(104.0)
    assert [item.id for item in episode.signals] == ["a"]
    assert (join.counts(), num_kept(join)) == ({"joined": 1}, 0)


@pytest.mark.slow
def test_a_crowd_that_waits_is_sent_on_tick_by_tick(join: Join) -> None:
    join.receive(*({"id": f"fb-{number}", "join_key": f"k{number % 60}"} for number in range(1200)))
    join.hear(*(a_generation(join_key=f"k{number}") for number in range(60)))
    left = [join.counts().get("pending", 0)]
    for now in (104.0, 104.25, 104.5):
        join.wait(now)
        left.append(join.counts().get("pending", 0))
    assert left == [700, 200, 0, 0]


def test_a_key_is_forgotten_after_thirty_days(join: Join) -> None:
    join.hear(a_generation(join_key="k"))
    for now, wanted in ((join.now + KEY_SECONDS, 1), (join.now + KEY_SECONDS + 61.0, 0)):
        join.wait(now)
        with join.database.snapshot() as connection:
            assert len(connection.execute(select(join_key)).all()) == wanted


def test_the_next_message_of_a_session_is_a_signal_about_the_answer_before(join: Join) -> None:
    first = a_generation(completion_id=IDS[0], session_id="s", body=said("a table"))
    next_words = said("a table", "yes", "for three, I said")
    second = a_generation(completion_id=IDS[1], session_id="s", body=next_words, created_at=105.0)
    join.hear(first)
    assert join.hear(second) == []
    assert about(join) == {f"follow_up:{first.key}": first.key}
    assert join.counts() == {"joined": 1}, "it was received like any other"
    (episode,) = [episode for episode in join.wait(111.0) if episode.key == first.key]
    assert [item.value for item in episode.signals] == ["for three, I said"]


def test_follow_ups_within_one_batch(join: Join) -> None:
    turns = [
        a_generation(completion_id=completion_id, session_id="s", body=said(*map(str, range(2 * number + 1))))
        for number, completion_id in enumerate(IDS)
    ]
    join.hear(*turns, *turns)
    assert about(join) == {f"follow_up:{turn.key}": turn.key for turn in turns[:2]}
    assert join.counts() == {"joined": 2}


def test_a_follow_up_under_a_taken_id_is_not_sent(join: Join) -> None:
    first, second = (
        a_generation(completion_id=completion_id, session_id="s", body=said(*words))
        for completion_id, words in zip(IDS, (("a",), ("a", "b", "c")), strict=False)
    )
    join.hear(first)
    join.receive({"id": f"follow_up:{first.key}", "completion_id": first.completion_id})
    join.hear(second)
    assert join.counts() == {"joined": 1}
