from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from pipelines.training.shards.launch import EndedRank, environment_of, launch, settle_rank
from runtime.listening import HELD_FDS, REPLICA
from runtime.operations import OPERATIONS_ADDRESS, OPERATIONS_FD

SECONDS = 20.0
# Each life of a rank appends a line to its own file; then it does what the test says, or waits for its standard input to close.
RANK = """
import os, pathlib, signal, sys
rank, folder = os.environ["RANK"], pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with (folder / rank).open("a") as file:
    file.write(os.environ["MASTER_PORT"] + " " + str(os.getpid()) + "\\n")
lives = len((folder / rank).read_text().splitlines())
{}
sys.stdin.read()
"""


def ranks_of(folder: Path, then: str, processes: int = 2, stop: threading.Event | None = None) -> tuple[int, list[str]]:
    said: list[str] = []
    command = [sys.executable, "-S", "-c", RANK.format(then), str(folder)]
    return launch(command, processes, stop or threading.Event(), said.append), said


def lives(folder: Path, rank: int) -> list[str]:
    return (folder / str(rank)).read_text().splitlines() if (folder / str(rank)).exists() else []


def test_when_rank_0_has_ended_the_others_end_too(tmp_path: Path) -> None:
    status, said = ranks_of(tmp_path, "sys.exit(0)", processes=3)
    assert (status, said) == (0, [])
    assert [len(lives(tmp_path, rank)) for rank in range(3)] == [1, 1, 1]


def test_a_rank_that_dies_lets_all_start_again_at_another_port(tmp_path: Path) -> None:
    is_here = "(folder / each).exists() and (folder / each).stat().st_size"  # else one is killed in a life that it has not counted
    wait = f"import time\nfor each in '01':\n    while not ({is_here}): time.sleep(.01)"
    kill = "if lives == 1 and rank == '1': os.kill(os.getpid(), signal.SIGKILL)"
    status, said = ranks_of(tmp_path, f"{wait}\n{kill}\nif lives == 2: sys.exit(0)")
    assert status == 0
    assert said == ["rank 1 ended with signal 9: the other ranks end too, and all 2 start again"]
    first, second = (line.split() for line in lives(tmp_path, 0))
    assert first[0] != second[0]
    assert not Path(f"/proc/{first[1]}").exists()


def test_what_a_person_has_to_look_at_is_not_tried_again(tmp_path: Path) -> None:
    status, said = ranks_of(tmp_path, "if rank == '1': sys.exit(2)")
    assert (status, said) == (2, [])
    assert len(lives(tmp_path, 1)) == 1


def test_every_rank_holds_what_the_launcher_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of cards: one is free once the last rank has ended."""
    ends, held = os.pipe()
    monkeypatch.setenv(HELD_FDS, str(held))
    status, _ = ranks_of(tmp_path, f"os.write({held}, rank.encode())\nsys.exit(0)")
    os.close(held)
    with os.fdopen(ends, "rb") as content:
        said = content.read()
    assert status == 0
    assert {*said} == {*b"01"}


@pytest.mark.slow
def test_rank_0_is_asked_to_end_and_no_rank_is_left(tmp_path: Path) -> None:
    stop = threading.Event()
    found: list[tuple[int, list[str]]] = []
    thread = threading.Thread(target=lambda: found.append(ranks_of(tmp_path, "", stop=stop)))
    thread.start()
    deadline = time.monotonic() + SECONDS
    while not (lives(tmp_path, 0) and lives(tmp_path, 1)) and time.monotonic() < deadline:
        time.sleep(0.01)
    pids = [line.split()[1] for rank in range(2) for line in lives(tmp_path, rank)]
    stop.set()
    thread.join(SECONDS)
    assert found == [(0, [])]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_rank_has_the_environment_of_torchrun() -> None:
    first, last = environment_of(0, 3, 29500), environment_of(2, 3, 29500)
    assert (first["RANK"], first["LOCAL_RANK"], first["WORLD_SIZE"], first["MASTER_PORT"]) == ("0", "0", "3", "29500")
    assert (last["RANK"], last["LOCAL_RANK"], last["MASTER_ADDR"]) == ("2", "2", "127.0.0.1")
    assert os.environ.keys() <= first.keys()


def test_only_the_first_rank_of_a_machine_answers_operators() -> None:
    operations = {OPERATIONS_FD: "7", OPERATIONS_ADDRESS: "0.0.0.0:9464"}
    first, second, alone = operations | {"LOCAL_RANK": "0"}, operations | {"LOCAL_RANK": "1"}, dict(operations)
    for environment in (first, second, alone):
        settle_rank(environment)
    assert first == operations | {"LOCAL_RANK": "0", REPLICA: "1"}
    assert second == {"LOCAL_RANK": "1", REPLICA: "2"}
    assert alone == operations


def test_an_end_is_said_for_a_person() -> None:
    assert EndedRank(1, -9).says == "rank 1 ended with signal 9"
    assert EndedRank(0, 70).says == "rank 0 ended with status 70"
