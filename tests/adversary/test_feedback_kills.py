"""SIGKILL at random moments under load: whatever feedback acknowledged is stored, and is in the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversary.kills.feedback import kill_under_load
from tests.forked import StartedProcess
from tests.worlds.feedback import running, servers
from tests.worlds.light_processes import start_light
from tests.worlds.servers.postgres import create_migrated


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_embedded(tmp_path: Path) -> None:
    with running(tmp_path) as world:
        verdict = kill_under_load(world, num_kills=2, connections=4)

    assert verdict.is_good, verdict


@pytest.mark.services
def test_nothing_acknowledged_is_lost_by_two_replicas_on_kafka_and_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (found := servers()) is None:
        pytest.skip("no MILLRACE_KAFKA and MILLRACE_DATABASE: run make test-services")
    monkeypatch.setattr("tests.worlds.feedback.create_database", create_migrated)
    with running(tmp_path, *found, replicas=2, start=start_replica) as world:
        verdict = kill_under_load(world, num_kills=3, connections=4)

    assert verdict.is_good, verdict


def start_replica(home: Path, output: Path) -> StartedProcess:
    return start_light("feedback", "--home", str(home), output=output)
