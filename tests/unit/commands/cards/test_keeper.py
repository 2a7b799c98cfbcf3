from __future__ import annotations

import resource
from collections.abc import Mapping
from pathlib import Path

import pytest

from commands.cards.demand import HomeFigures, figures_of
from commands.cards.keeper import CardKeeper
from commands.cards.policy import CardUse
from commands.cards.records import MoveRecord, PoolRecord, read_record, started, write_record
from commands.supervisor import GivenChild
from engines.card_users import GpuSettings


class FakeChildren:
    """Processes that end and become ready when the test says so."""

    def __init__(self) -> None:
        self.running: dict[str, GivenChild] = {}
        self.told: list[str] = []
        self.ready, self.broken = True, ""
        self.busy = False

    def add(self, name: str, given: GivenChild) -> None:
        assert name not in self.running
        cards = given.environment["CUDA_VISIBLE_DEVICES"].split(",")
        taken = [
            card for other in self.running.values() for card in other.environment["CUDA_VISIBLE_DEVICES"].split(",")
        ]
        assert not {*cards} & {*taken}, "a card has one holder"
        self.running[name] = given
        self.told.append(f"add {name}")

    def drain(self, name: str) -> None:
        self.told.append(f"drain {name}")

    def is_idle(self, name: str) -> bool:
        return name in self.running and not self.busy

    def end(self, name: str) -> None:
        self.told.append(f"end {name}")
        del self.running[name]

    def is_gone(self, name: str) -> bool:
        return name not in self.running

    def is_ready(self, name: str) -> bool:
        return self.ready and name in self.running and name != self.broken


class Pool:
    """A keeper over fakes, and a clock."""

    def __init__(self, home: Path, pool: tuple[int, ...] = (0, 1, 2, 3), floor: int = 1) -> None:
        self.now, self.backlog, self.problem = 1e6, 1000.0, ""
        self.in_flight: float | None = 16.0
        self.ahead = 1e9
        """Of the machine's clock, before the one that never goes back."""
        self.children, self.said = FakeChildren(), list[str]()
        self.keeper = CardKeeper(
            home, GpuSettings(pool=pool, floor=floor), "engine", "cpu", locks=dict.fromkeys(pool, 7), children=self.children,
            measure=lambda: HomeFigures(self.in_flight, self.backlog, 60.0), health=lambda card: self.problem * (card == 3), patience=100.0,
            report=self.said.append, clock=lambda: self.now, utc=lambda: self.now + self.ahead,
        )  # fmt: skip
        self.keeper.start()

    def live(self, seconds: float) -> None:
        for _ in range(int(seconds / 2)):
            self.now += 2.0
            self.keeper.step()

    def split(self) -> Mapping[CardUse, list[int]]:
        return {use: self.keeper.record.of(use) for use in ("users", "training", "nobody")}


def test_a_quiet_night_gives_the_trainer_all_but_the_floor_and_a_morning_takes_them_back(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    assert pool.split() == {"users": [0, 1], "training": [2, 3], "nobody": []}
    pool.live(400)
    assert pool.split() == {"users": [0], "training": [1, 2, 3], "nobody": []}
    assert pool.children.told[3:] == ["drain engine-2", "end engine-2", "end training", "add training"]
    assert pool.children.running["training"].arguments == ("--processes", "3")
    pool.in_flight = 80.0
    pool.live(3600)
    assert len(pool.split()["users"]) == 3
    assert read_record(tmp_path) == pool.keeper.record


def test_what_is_in_flight_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.children.busy = True
    pool.live(400)
    drained = pool.children.told.index("drain engine-2")
    assert pool.children.told[drained + 1] == "end engine-2"
    assert pool.keeper.record.move_seconds >= 12.0


def test_a_move_is_written_down_before_anything_ends(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    while "drain engine-2" not in pool.children.told:
        pool.live(2)
    record = read_record(tmp_path)
    assert record is not None
    assert record.move is not None
    assert (record.move.card, record.move.to) == (1, "training")
    again = Pool(tmp_path)  # as after a kill
    assert again.split() == {"users": [0], "training": [1, 2, 3], "nobody": []}


def test_a_card_that_fails_its_check_is_given_to_nobody(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.problem, pool.in_flight = "it has 3 uncorrected memory errors", 80.0
    pool.live(500)
    assert pool.split() == {"users": [0, 1, 2], "training": [], "nobody": [3]}
    assert any("card 3 failed its check: it has 3" in line for line in pool.said)
    assert "engine" in pool.children.running, "users are answered meanwhile"


def test_an_engine_that_never_becomes_ready_gives_its_card_back(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.in_flight, pool.children.broken = 80.0, "engine-4"
    pool.live(500)
    assert pool.split() == {"users": [0, 1], "training": [2, 3], "nobody": []}
    assert {*pool.children.running} == {"engine", "engine-2", "training"}
    assert pool.keeper.record.move_seconds == 0.0, "it says nothing of how long a move takes"
    assert pool.children.told.count("add engine-4") == 1
    pool.live(300)
    assert "the next try is in" in pool.keeper.record.next
    pool.live(300)
    assert pool.children.told.count("add engine-4") == 2
    pool.children.broken = ""
    pool.live(1000)
    assert pool.split()["users"] == [0, 1, 3]


def test_a_card_that_breaks_while_an_engine_starts_is_given_to_nobody(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.in_flight, pool.children.broken = 80.0, "engine-4"
    while "add engine-4" not in pool.children.told:
        pool.live(2)
    pool.problem = "it has 3 uncorrected memory errors"
    pool.live(200)
    assert pool.split() == {"users": [0, 1, 2], "training": [], "nobody": [3]}
    assert {*pool.children.running} == {"engine", "engine-2", "engine-3"}, "users get the next one at once"


def test_replicas_that_do_not_serve_do_not_count(tmp_path: Path) -> None:
    """Else the one that serves could be taken."""
    pool = Pool(tmp_path, floor=1)
    pool.children.ready = False
    pool.live(1000)
    assert not [told for told in pool.children.told if told.startswith("drain")]


def test_a_replica_that_starts_again_moves_nothing(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.live(290)
    pool.children.broken = "engine"
    pool.live(90)
    assert "card 0 starts" in pool.keeper.record.next
    assert pool.keeper.record.move is None
    assert len(pool.children.told) == 3


def test_a_full_disk_moves_nothing_and_ends_nothing(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        pool.live(400)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(pool.children.told) == 3
    assert [line for line in pool.said if "no space left" in line] == pool.said
    pool.live(10)
    assert pool.split()["users"] == [0]


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_the_clock_of_the_machine_moves_nothing(tmp_path: Path, jump: float) -> None:
    pool = Pool(tmp_path)
    while "drain engine-2" not in pool.children.told:
        pool.live(2)
    pool.ahead += jump
    pool.live(30)
    assert pool.split()["users"] == [0]
    assert pool.keeper.record.move_seconds < 30
    pool.in_flight = 80.0
    pool.live(3600)
    assert len(pool.split()["users"]) == 3


def test_what_the_file_says_of_the_last_move_is_bounded(tmp_path: Path) -> None:
    write_record(
        tmp_path, PoolRecord(cards=started(None, [0, 1, 2, 3], 1, 1.0).cards, moved_at=1e300, move_seconds=1e300)
    )
    pool = Pool(tmp_path)
    assert pool.keeper.record.move_seconds == 100.0 + 12.0 + 60.0
    pool.live(1700)
    assert pool.split()["users"] == [0, 1], "a move of the future is one of now"
    pool.live(100)
    assert pool.split()["users"] == [0]


def test_a_trainer_without_a_card_does_not_run(tmp_path: Path) -> None:
    record = started(None, [0, 1], 1, 1.0)
    write_record(tmp_path, PoolRecord(cards=record.cards, move=MoveRecord(card=1, to="users", why="", begun_at=1.0)))
    assert {*Pool(tmp_path, (0, 1)).children.running} == {"engine", "engine-2"}


def test_figures_are_sums_over_replicas_and_lag_is_counted_once() -> None:
    inference = 'millrace_users_in_flight{policy="p"} 3.0\nmillrace_requests_in_flight{service="feedback"} 9.0\n'
    lag = "\n".join(
        f'millrace_lag_records{{group="{group}",partition="{n}",topic="t"}} 5.0'
        for group in ("training", "rewards")
        for n in "01"
    )
    release = "millrace_live_age_seconds 40.0\n# nonsense"
    told = {"inference": inference, "inference-2": inference + lag, "training": lag, "release": release}
    assert figures_of(told) == HomeFigures(6.0, 10.0, 40.0)
    assert figures_of({}) == HomeFigures(None, None, None)


@pytest.mark.parametrize("silent", ["", 'millrace_lag_records{group="training"} 5.0\n'])
def test_a_part_of_the_users_is_no_measurement(silent: str) -> None:
    told = {"web": 'millrace_users_in_flight{policy="p"} 3.0\n', "web-2": silent, "training": ""}
    assert figures_of(told).in_flight is None


def test_silence_is_not_the_load_of_before(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    pool.live(290)
    pool.in_flight = None
    pool.live(1500)
    assert "too early to tell" in pool.keeper.record.next
    assert pool.split()["users"] == [0, 1]
    pool.in_flight = 16.0
    pool.live(400)
    assert pool.split()["users"] == [0]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"pool": (0, 1), "floor": 2}, "leaves nothing of a pool of 2"),
        ({"pool": (0, 0)}, "each card once"),
        ({"pool": (-1, 0)}, "from 0"),
        ({"pool": (0, 1), "added_p99_ms": 5.0}, "on one card"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(given: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        GpuSettings.model_validate(given)
