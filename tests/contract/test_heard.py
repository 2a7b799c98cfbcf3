"""What was heard of answers that graders call equally good, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import select

from contracts.tables import behaviour, heard
from rewards.signals.repository import add_heard, forget_heard, heard_since, responses_of
from rewards.signals.silence import HeardKey, Tally
from runtime.database import Database
from tests.fakes import Crash
from tests.worlds.crowd import BLAND, GRADED, HELPFUL, SilentCrowd, is_imputed

STYLES = (HELPFUL, BLAND)


def totals(database: Database) -> dict[tuple[int, int], Tally]:
    """By bucket and `asked`, over all hours."""
    found: dict[tuple[int, int], Tally] = {}
    with database.snapshot() as connection:
        for row in connection.execute(select(heard)):
            place = (row.bucket, row.asked)
            found[place] = found.get(place, Tally()).plus(Tally(row.num_answers, row.num_heard, row.total))
    return found


def test_counts_add_up_are_read_from_the_newest_and_forgotten(any_database: Database) -> None:
    new, old = HeardKey("chat", "ab", 9, 4, 0), HeardKey("chat", "ab", 7, 4, 1)
    with any_database.transaction() as connection:
        add_heard(connection, {new: Tally(3, 2, 1.5), old: Tally(1, 1, 1.0), new._replace(task_hash="cd"): Tally(9)})
        add_heard(connection, {new: Tally(1, -1, -0.5)})
        assert heard_since(connection, "chat", "ab", 7, 9) == [(4, 0, Tally(4, 1, 1.0)), (4, 1, Tally(1, 1, 1.0))]
        assert heard_since(connection, "chat", "ab", 8, 9) == [(4, 0, Tally(4, 1, 1.0))]
        forget_heard(connection, "chat", 9)
        assert heard_since(connection, "chat", "ab", 0, 99) == [(4, 0, Tally(4, 1, 1.0))]
        add_heard(connection, {})


def test_the_helpful_win(any_database: Database) -> None:
    crowd = SilentCrowd(any_database)
    crowd.talk(STYLES, 4)
    crowd.close()
    made = crowd.made_of(STYLES)
    assert made["helpful"].mean > made["bland"].mean
    assert made["helpful"].weighted > made["bland"].weighted
    assert totals(any_database) == {(4, 0): Tally(800, 280, 4 * (36.0 + 4.0))}
    with any_database.snapshot() as connection:
        assert responses_of(connection, {("chat", 1), ("chat", 2), ("chat", 3)}) == {
            ("chat", 1): {0: (400, 240)}, ("chat", 2): {0: (400, 40)},
        }  # fmt: skip


def test_who_dies_before_the_commit_has_counted_nothing(any_database: Database) -> None:
    crowd = SilentCrowd(any_database)
    crowd.talk(STYLES, 1)
    before = totals(any_database)
    turns = [crowd.answer(HELPFUL) for _ in range(20)]
    items = [crowd.graded(crowd.episode(turn, crowd.word(turn, happy=True))) for turn in turns]

    def die() -> None:
        with any_database.transaction() as connection:
            crowd.handler.handle(connection, items)
            raise Crash

    with pytest.raises(Crash):
        die()
    assert totals(any_database) == before
    for _ in range(3):  # delivered again, and again
        crowd.hear([item.episode for item in items])
    assert totals(any_database) == {(4, 0): before[4, 0].plus(Tally(20, 20, 20.0))}
    crowd.close()


@pytest.mark.slow
def test_two_replicas_count_every_word_and_guess_alike(any_database: Database) -> None:
    crowds = [SilentCrowd(any_database, seed=seed) for seed in (1, 2)]
    threads = [threading.Thread(target=crowd.talk, args=(STYLES, 5), daemon=True) for crowd in crowds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not any(thread.is_alive() for thread in threads), "they wait for each other"
    for crowd in crowds:
        crowd.close()
    assert totals(any_database) == {(4, 0): Tally(2000, 700, 10 * (36.0 + 4.0))}
    made = [item for crowd in crowds for item in crowd.experiences.values()]
    assert len(made) == 2000
    guessed = [item.reward for item in made if is_imputed(item)]
    assert len(guessed) > 900
    assert guessed == pytest.approx([0.5 + 0.5 * 0.4 / 0.7] * len(guessed), abs=0.02)
    with any_database.snapshot() as connection:
        rows = connection.execute(select(behaviour).where(behaviour.c.metric == "response")).all()
    assert sorted((row.version, row.num, row.total) for row in rows) == [(1, 1000, 600.0), (2, 1000, 100.0)]


def test_a_home_of_before_goes_on(any_database: Database) -> None:
    """A vote older than the column has no evidence, so nothing is subtracted that was never added."""
    plain = SilentCrowd(any_database, GRADED | {"silence": "unlabelled"})
    turn = plain.answer(HELPFUL)
    up = plain.word(turn, happy=True)
    plain.hear([plain.episode(turn, up)])
    plain.close()
    crowd = SilentCrowd(any_database)
    crowd.hear([crowd.episode(turn, up, crowd.word(turn, happy=False, id="fb_2", at=crowd.now + 1), revision=2)])
    assert totals(any_database) == {(4, 0): Tally(0, 1, 0.0)}
    crowd.hear([crowd.episode(turn, revision=3)])
    assert totals(any_database) == {(4, 0): Tally(0, 0, 0.0)}
    crowd.close()
