import time

from commands.home import Home
from commands.process_rows import process_findings
from contracts import heartbeats
from contracts.heartbeats import NEEDED, ProcessBeat


def test_doctor_names_processes_that_are_down(home: Home) -> None:
    assert list(process_findings(home.settings)) == []
    now = time.time()
    database = home.settings.database()
    with database.transaction() as connection:
        for name in NEEDED:
            heartbeats.beat(connection, home.settings.policy, ProcessBeat(name, "a/1", now, now, 120.0))
    assert [(found.good, found.says) for found in process_findings(home.settings)] == [
        (True, "episodes, release, rewards, training: all up")
    ]
    with database.transaction() as connection:
        heartbeats.beat(connection, home.settings.policy, ProcessBeat("training", "a/1", now - 60, now - 60, 120.0))
    database.close()
    (found,) = process_findings(home.settings)
    assert not found.good
    assert found.says.startswith("training (a/1) is down: silent for 6")
