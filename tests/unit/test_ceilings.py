"""No folder gets crowded, and no test reaches further into other packages: `tests/upkeep/ceilings.toml` has what is left of both."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upkeep import ceilings
from tests.upkeep.ceilings import MOST_MODULES, REFRESH, Ceilings, counted, grown, listed, reached, written


@pytest.fixture(scope="module")
def now() -> Ceilings:
    return counted()


def test_no_folder_has_more_modules_than_one_can_survey(now: Ceilings) -> None:
    assert grown(listed().modules, now.modules) == {}, (
        f"split the folder: {MOST_MODULES} modules at most, or as many as were listed"
    )


def test_no_test_reaches_more_private_names_of_other_packages(now: Ceilings) -> None:
    assert grown(listed().private, now.private) == {}, (
        "test through a public name; tests.upkeep.ceilings.reached names the lines"
    )


def test_the_list_is_as_low_as_it_can_be(now: Ceilings) -> None:
    assert listed() == now, REFRESH


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("from runtime.worker import _Batch", ["_Batch"]),
        ("import rewards.sandbox._native", ["_native"]),
        ("worker._step()", ["_step"]),
        ("self.worker._step()", ["_step"]),
        ('monkeypatch.setattr("runtime.worker._PAUSE", 0)', ["_PAUSE"]),
        ('monkeypatch.setattr(worker, "_pause", 0)', ["_pause"]),
        ('getattr(worker, "_pause")', ["_pause"]),
        ("from tests.helpers import _world", []),
        ("self._world = _world()", []),
        ("row._replace(x=1).__class__", []),
        ("class Fake:\n    def _own(self): ...\n\n\nFake()._own()", []),
        ("import runtime.worker\n\nruntime.worker.step()", []),
    ],
)
def test_a_private_name_is_found(line: str, names: list[str]) -> None:
    assert [name for _, name in reached(line)] == names


def test_a_number_never_rises_and_a_new_name_takes_along_what_others_lost() -> None:
    assert grown({"a": 3}, {"a": 4}) == {"a": (3, 4)}
    assert grown({"a": 3}, {"a": 2}) == {}
    assert grown({"a": 3}, {"a": 3, "b": 1}) == {"b": (0, 1)}
    assert grown({"a": 3}, {"moved/a": 3}) == {}
    assert grown({"a": 3}, {"a": 1, "b": 2}) == {}
    assert grown({"a": 3, "b": 3}, {"a": 4}) == {"a": (3, 4)}


def test_the_command_writes_a_list_lower_and_never_higher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, now: Ceilings, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ceilings.toml"
    monkeypatch.setattr(ceilings, "LISTED", path)
    monkeypatch.setattr(ceilings, "listed", lambda: listed(path))
    monkeypatch.setattr(ceilings, "counted", lambda: now)
    name = next(iter(now.modules))
    path.write_text(written(now._replace(modules={**now.modules, name: now.modules[name] + 1, "gone": 30})))
    assert ceilings.main() == 0
    assert listed(path) == now
    text = written(now._replace(modules={**now.modules, name: now.modules[name] - 1}))
    path.write_text(text)
    assert ceilings.main() == 1
    assert path.read_text() == text
    assert name in capsys.readouterr().err
