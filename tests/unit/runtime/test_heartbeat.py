import threading
import time

from contracts import heartbeats
from contracts.heartbeats import ProcessBeat
from runtime.database import Database
from runtime.heartbeat import Heartbeat, end_heartbeats
from tests.unit.services.serving import wait_until


def rows(database: Database) -> list[ProcessBeat]:
    with database.snapshot() as connection:
        return heartbeats.read(connection, "p")


def test_a_process_beats_until_it_ends_in_order(database: Database) -> None:
    heart = Heartbeat(Database(database.url), "p", "rewards", 120.0)
    wait_until(lambda: len(rows(database)) == 1)
    sign = rows(database)[0]
    assert sign.process == "rewards"
    assert sign.replica.endswith("/1")
    assert abs(sign.at - time.time()) < 5
    end_heartbeats()
    assert rows(database) == []
    heart.close()  # a second end does nothing


def test_a_database_that_is_away_ends_no_process(tmp_path: object) -> None:
    heart = Heartbeat(Database(f"sqlite:///{tmp_path}/nowhere/m.db"), "p", "rewards", 120.0)
    time.sleep(0.05)
    assert "heartbeat" in {thread.name for thread in threading.enumerate()}
    heart.close()
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
