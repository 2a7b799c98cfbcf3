from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from contracts.errors import InvalidSettings, Unavailable
from pipelines.training.settings import TrainingSettings
from pipelines.training.shards.joining import BROKEN, GroupMember, Pulse, facts_of, join, meet
from runtime.settings import Settings

FIRST, SECOND = GroupMember(0, 2, 0), GroupMember(1, 2, 1)
FACTS = {"release": "Millrace 1.0", "[millrace] home": "a", "[training] learning_rate": "b"}


class Words:
    """A store in memory. `is_away`: as if its host stood still or the network was cut."""

    def __init__(self, held: dict[str, bytes] | None = None) -> None:
        self.held = held or {}
        self.is_away = False

    def set(self, name: str, value: str) -> None:
        if self.is_away:
            raise RuntimeError("broken pipe")
        self.held[name] = value.encode()

    def multi_get(self, names: list[str]) -> Sequence[bytes]:
        return [self.held[name] for name in names]

    def check(self, names: list[str]) -> bool:
        return self.held.keys() >= {*names}


def with_other(member: GroupMember, facts: dict[str, str]) -> Words:
    return Words({f"facts/{member.rank}": msgspec.json.encode(facts), f"read/{member.rank}": b""})


def test_an_attempt_has_a_name_that_no_earlier_one_had_whoever_comes_first() -> None:
    words, seen = Words(), set[str]()
    for late in (0, 1, 2):  # each attempt finds what the ones before have left
        with ThreadPoolExecutor(3) as ranks:
            order = sorted(range(3), key=lambda rank: rank == late)
            started = []
            for rank in order:
                if rank == late:
                    time.sleep(0.2)
                started.append(ranks.submit(meet, words, GroupMember(rank, 3, 0), 10.0))
        [name] = {each.result() for each in started}
        assert name not in seen
        seen.add(name)


@pytest.mark.parametrize(("rank", "missing"), [(0, "1, 2"), (1, "0")])
def test_who_is_missing_is_named(rank: int, missing: str) -> None:
    words = Words({"hello/1": b"of an attempt before", "hello/2": b"likewise"})
    with pytest.raises(Unavailable, match=rf"rank {missing} of 3 did not come within 0\.05 s"):
        meet(words, GroupMember(rank, 3, 0), 0.05)


@pytest.mark.parametrize(("member", "other"), [(FIRST, SECOND), (SECOND, FIRST)])
def test_ranks_of_one_release_home_and_settings_join(member: GroupMember, other: GroupMember) -> None:
    join(with_other(other, FACTS), member, FACTS, 5.0)


@pytest.mark.parametrize(("member", "other"), [(FIRST, SECOND), (SECOND, FIRST)])
@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("release", r"rank 1 does not belong to this group: it differs in release \(Millrace .* there, Millrace .* on rank 0\)"),
        ("[millrace] home", r"rank 1 does not belong to this group: it differs in \[millrace\] home;"),
        ("[training] learning_rate", r"rank 1 .* differs in \[training\] learning_rate;"),
    ],
)  # fmt: skip
def test_every_rank_refuses_one_that_differs_and_says_in_what(
    member: GroupMember, other: GroupMember, field: str, says: str
) -> None:
    theirs = FACTS | {field: "Millrace 0.9"}
    with pytest.raises(InvalidSettings, match=says):
        join(with_other(other, theirs), member, FACTS, 5.0)


def test_a_rank_that_does_not_come_is_named() -> None:
    with pytest.raises(Unavailable, match=r"rank 1, 2 of 3 did not come within 0\.05 s"):
        join(Words(), GroupMember(0, 3, 0), FACTS, 0.05)


def test_facts_name_every_setting_and_show_none(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path, run="r", policy="p", base="b", tasks=(Path("t"),), database_url="postgresql://u:secret@h/d"
    )
    facts = facts_of("Millrace 1.0", {"millrace": settings, "training": TrainingSettings()})
    other = facts_of("Millrace 1.0", {"millrace": settings, "training": TrainingSettings(learning_rate=1.0)})
    assert [name for name in facts if facts[name] != other[name]] == ["[training] learning_rate"]
    assert "secret" not in str(facts)


def test_a_rank_knows_its_place_and_its_card() -> None:
    environment = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
    member = GroupMember.of(environment)
    assert member == GroupMember(5, 8, 1)
    assert (member.device("cpu"), member.device("cuda")) == ("cpu", "cuda:1")
    with pytest.raises(InvalidSettings, match="device cuda:0 is one GPU for 8 ranks"):
        member.device("cuda:0")
    assert GroupMember.of({}) is GroupMember.of({"WORLD_SIZE": "1", "RANK": "0"}) is None
    with pytest.raises(InvalidSettings, match="'RANK' is not"):
        GroupMember.of({"WORLD_SIZE": "2"})


def pulses(words: Words, is_moving: bool = True) -> tuple[Pulse, Pulse]:
    return Pulse(words, FIRST, 10.0, lambda: is_moving), Pulse(words, SECOND, 10.0, lambda: True)


def test_a_rank_that_gives_no_sign_is_silent_after_the_deadline_and_not_before() -> None:
    first, second = pulses(Words())
    first.beat(0.0)
    second.beat(0.0)
    first.beat(1.0)
    start = 1.0
    for now in range(2, 11):
        first.beat(float(now))
    assert first.silent(start + 9.0) == []
    assert first.silent(start + 11.0) == [1]
    second.beat(11.5)
    first.beat(12.0)
    assert first.silent(21.0) == []


def test_rank_0_without_progress_is_silent_for_the_others() -> None:
    first, second = pulses(Words(), is_moving=False)
    for now in range(12):
        first.beat(float(now))
        second.beat(float(now))
    assert second.silent(11.0) == [0]


def test_a_rank_that_was_cut_off_ends() -> None:
    words, ended = Words(), threading.Event()
    words.is_away = True
    statuses: list[int] = []

    def end(status: int) -> None:
        statuses.append(status)
        ended.set()

    with Pulse(words, FIRST, 0.1, lambda: True).watched(end):
        assert ended.wait(5.0)
    assert statuses == [BROKEN]


def test_a_watch_that_is_over_ends_nobody() -> None:
    statuses: list[int] = []
    with Pulse(Words(), FIRST, 0.1, lambda: True).watched(statuses.append):
        pass
    threading.Event().wait(0.3)
    assert statuses == []
