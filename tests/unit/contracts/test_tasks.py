from __future__ import annotations

from pathlib import Path

import pytest

from contracts.errors import InvalidTask, InvalidValue
from contracts.tasks.loading import load_tasks
from tests.each_case import each_case
from tests.fakes import BOOKING_TASK

GOOD = """
name = "t"
[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }
[[verifiers]]
name = "a"
kind = "json_exact"
[[verifiers]]
name = "b"
kind = "json_exact"
weight = 2
"""


def load(tmp_path: Path, text: str) -> None:
    path = tmp_path / "task.toml"
    path.write_text(text)
    load_tasks((path,))


def test_every_shipped_task_loads() -> None:
    paths = tuple(Path("examples").glob("*/task.toml"))
    assert paths
    assert all(len(task.hash) == 12 for task in load_tasks(paths).values())


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ('type = "bool"', 'type = "maybe"', 4, "signals.accepted.type"),
        ("weight = 2", "weight = -2", 12, "verifiers.1.weight"),
        ('name = "t"', 'name = "T t"', 2, "name"),
        ('kind = "json_exact"\n[[', 'kind = "json_exact"\ncolour = 1\n[[', 9, "colour"),
        ("labels = { true = 1.0, false = 0.0 }", "", 3, "needs `labels`"),
    ],
)
def test_a_mistake_is_named_by_file_and_line(tmp_path: Path, old: str, new: str, place: int, says: str) -> None:
    assert old in GOOD
    with pytest.raises(InvalidTask, match=rf"task\.toml:{place}: .*{says}"):
        load(tmp_path, GOOD.replace(old, new, 1))


def test_what_is_learned_besides_rewards_changes_no_score_and_cannot_be_nothing(tmp_path: Path) -> None:
    load(tmp_path, GOOD)
    [plain] = load_tasks((tmp_path / "task.toml",)).values()
    assert (plain.learning.rl, plain.learning.reads_edits) == (1.0, False)
    load(tmp_path, f"{GOOD}\n[learning]\nrl = 0\nce = 1\npair = 0.5\n")
    [edits] = load_tasks((tmp_path / "task.toml",)).values()
    assert (edits.learning.reads_edits, edits.hash) == (True, plain.hash)
    with pytest.raises(InvalidTask, match=r"task\.toml:\d+: .*every stream is off"):
        load(tmp_path, f"{GOOD}\n[learning]\nrl = 0\n")


def test_broken_toml_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match=r"task\.toml: .*line 2"):
        load(tmp_path, "\nname = t t\n")


def test_a_missing_file_and_a_doubled_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match=r"nosuch\.toml"):
        load_tasks((tmp_path / "nosuch.toml",))
    path = tmp_path / "task.toml"
    path.write_text(GOOD)
    with pytest.raises(InvalidTask, match="another file already declares"):
        load_tasks((path, path))


PARTS = """
name = "t"
[reward]
signals = 0.5
[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }
[[verifiers]]
name = "a"
kind = "json_exact"
role = "component"
weight = 0.25
[[verifiers]]
name = "b"
kind = "json_exact"
role = "component"
weight = 0.25
"""


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ("weight = 0.25", "weight = 0.35", 12, r"add up to 0\.6.*leave `reward.signals` out"),
        ("signals = 0.5", "signals = 0.7", 12, "together they must be 1"),
        ("signals = 0.5", "signals = 1.5", 4, "less than or equal to 1"),
        ('name = "b"', 'name = "a"', 14, "two parts of the reward are named"),
        ('name = "b"', 'name = "accepted"', 14, "two parts of the reward are named"),
        ("true = 1.0", "true = 2.0", 5, "rewards go from 0 to 1"),
        ("signals = 0.5", "signals = 0.5\nhigh = -1", 3, "high must be above low"),
        ("[[verifiers]]", '[audit]\njudge = "nobody"\n[[verifiers]]', 9, "add it under"),
        (
            "[[verifiers]]",
            (
                '[audit]\njudge = "j"\n[[judges]]\nname = "j"\nrole = "gate"\n'
                'url = "http://h/v1"\nmodel = "m"\ncriteria = "?"\n[[verifiers]]'
            ),
            *(9, "set its role to `watch`"),
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_named_by_file_and_line(
    tmp_path: Path, old: str, new: str, place: int, says: str
) -> None:
    load(tmp_path, PARTS)
    with pytest.raises(InvalidTask, match=rf"task\.toml:{place}: .*{says}"):
        load(tmp_path, PARTS.replace(old, new, 1))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accepted", 2),
        ("accepted", 0.5),
        ("accepted", "yes"),
        ("stars", True),
        ("stars", "5"),
        ("comment", 3),
        ("edited", False),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidValue, match=name):
        BOOKING_TASK.signal(name).check(name, value)  # type: ignore[arg-type]


def test_an_undeclared_signal_is_refused_with_what_there_is() -> None:
    with pytest.raises(InvalidValue, match="accepted"):
        BOOKING_TASK.signal("liked")


@each_case(
    ("name", "value", "reward"),
    [
        ("accepted", True, 1.0),
        ("accepted", False, 0.0),
        ("accepted", 1, 1.0),
        ("accepted", 0.0, 0.0),
        ("stars", 5, 1.0),
        ("stars", 3, 0.5),
        ("stars", 9, 1.0),
        ("edited", "x", 0.0),
        ("comment", "x", None),
    ],
)
def test_what_values_are_worth(name: str, value: bool | float | str, reward: float | None) -> None:
    rule = BOOKING_TASK.signal(name)
    rule.check(name, value)
    assert rule.reward_of(value) == reward


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_numbers_are_finite(tmp_path: Path, value: str) -> None:
    with pytest.raises(InvalidTask, match=r"task.toml:5: signals.accepted.labels.true: .*finite"):
        load(tmp_path, GOOD.replace("true = 1.0", f"true = {value}"))


def test_what_is_missing_is_missed_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(InvalidTask, match=r"task.toml:1: name: Field required"):
        load(tmp_path, GOOD.replace('name = "t"\n', ""))
    with pytest.raises(InvalidTask, match=r"task.toml:9: verifiers.1.kind: Field required"):
        load(tmp_path, GOOD.replace('kind = "json_exact"\nweight = 2', "weight = 2"))


def test_a_file_that_is_not_utf8_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_bytes(b'name = "t"\n# caf\xe9\n')
    with pytest.raises(InvalidTask, match=r"task.toml:2: not UTF-8"):
        load_tasks((path,))
