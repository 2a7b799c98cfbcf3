"""Webhooks on both databases: of two replicas that look at the same moment one queues, and one sends."""

from __future__ import annotations

import threading

from contracts.assignments import LIVE
from runtime.database import Database
from tests.unit.pipelines.release.webhooks.test_teller import Clock, known, look, make_teller, move, rows, verified
from tests.worlds.release.receiver import receiving

NUM_MOVES = 12


def test_each_move_is_told_once_by_two_replicas(any_database: Database) -> None:
    with receiving() as receiver:
        clock = Clock()
        tellers = [known(any_database, receiver, clock), make_teller(any_database, receiver, clock)]
        for version in range(NUM_MOVES):
            move(any_database, LIVE, version)
        together = threading.Barrier(2)

        def tell(number: int) -> None:
            together.wait()
            for _ in range(3):
                look(tellers[number])

        threads = [threading.Thread(target=tell, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(item["data"]["version"] for item in verified(receiver)) == list(range(NUM_MOVES))
        assert len(rows(any_database)) == NUM_MOVES


def test_a_message_that_was_refused_is_sent_again(any_database: Database) -> None:
    with receiving() as receiver:
        clock = Clock()
        teller = known(any_database, receiver, clock)
        receiver.statuses = [503]
        move(any_database, LIVE, 1)
        assert (look(teller), look(teller)) == (1, 0)
        clock.ahead += 10.0
        assert (look(teller), look(teller)) == (1, 0)
        assert len({post.id for post in receiver.posts}) == 1
        [row] = rows(any_database)
        assert (row.num_tries, row.problem) == (2, "")
