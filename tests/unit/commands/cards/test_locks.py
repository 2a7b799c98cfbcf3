from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from commands.cards.command import gpus
from commands.cards.locks import card_problem, locked
from commands.cards.records import started, write_record
from commands.cards.starting import kept, moving, pool_of
from commands.engines import OURS
from commands.supervisor import Supervisor
from contracts.errors import InvalidSettings
from engines.card_users import GpuSettings
from runtime.settings import Settings, write_settings

SHARED = GpuSettings(pool=(0, 1))


def home_of(folder: Path, name: str, device: str = "cpu") -> Settings:
    settings = Settings(home=folder / name, run="r", policy="p", base="b", tasks=(folder / "t.toml",), device=device)
    write_settings(settings, {"gpu": SHARED})
    return settings


def test_two_pools_that_want_one_card_are_named(tmp_path: Path) -> None:
    with locked([0, 1], "cpu", tmp_path / "one", tmp_path):
        named = rf"card 1 is held by the pool of {tmp_path}/one; nothing was changed"
        with pytest.raises(InvalidSettings, match=named), locked([2, 1], "cpu", tmp_path / "two", tmp_path):
            pytest.fail("one card, two pools")
        with locked([2], "cpu", tmp_path / "two", tmp_path):
            pass
    with locked([0, 1], "cpu", tmp_path / "two", tmp_path):
        pass


def test_a_process_that_computes_on_a_card_keeps_it_after_its_supervisor(tmp_path: Path) -> None:
    with locked([0], "cpu", tmp_path / "one", tmp_path) as locks:
        orphan = subprocess.Popen(
            [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=[locks[0]]
        )
    assert orphan.stdin is not None
    with pytest.raises(InvalidSettings, match="held by"), locked([0], "cpu", tmp_path / "two", tmp_path):
        pytest.fail("it still computes there")
    orphan.stdin.close()
    orphan.wait()
    with locked([0], "cpu", tmp_path / "two", tmp_path):
        pass


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "millrace-card-cpu-0.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidSettings, match="card 0"), locked([0], "cpu", tmp_path, tmp_path):
        pytest.fail("it was followed")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("echo 0", ""),
        ("echo '[N/A]'", ""),
        ("echo 3", "it has 3 uncorrected memory errors"),
        ("exit 6", "does not find it"),
    ],
)
def test_what_is_wrong_with_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, says: str) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{program}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = card_problem("cuda", 1)
    assert says in found
    assert bool(says) == bool(found)


def test_a_card_that_is_not_well_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = home_of(tmp_path, "home", "cuda")
    supervisor = Supervisor(settings.home, {}, print)
    refused = pytest.raises(InvalidSettings, match=r"\[gpu\] pool: card 0 cannot be used")
    with refused, kept(settings, SHARED, OURS, supervisor, report=print, patience=1.0):
        pytest.fail("it was used")
    assert not (settings.home / "cards.json").exists()


def test_a_pool_moves_engines_and_trainer_and_names_what_does_not_fit(tmp_path: Path) -> None:
    settings = home_of(tmp_path, "home")
    found = pool_of(settings.home, OURS, "cpu")
    assert found == SHARED
    assert moving(found, OURS) == ("engine", "training")
    assert pool_of(tmp_path, OURS, "cpu") is None
    assert moving(None, OURS) == ()
    with pytest.raises(InvalidSettings, match="--device cuda:1 names one"):
        pool_of(settings.home, OURS, "cuda:1")


def test_the_command_prints_what_the_pool_last_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = home_of(tmp_path, "home")
    with pytest.raises(InvalidSettings, match="pool = "):
        gpus(settings.home)
    write_record(settings.home, started(None, [0, 1], 1, 1.0))
    gpus(settings.home, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [(row["card"], row["use"], row["problem"]) for row in found["cards"]] == [
        (0, "users", ""),
        (1, "training", ""),
    ]
    assert (found["runs"], found["without"]) == (False, ["rollouts"])
    gpus(settings.home)
    assert "rollouts" in (printed := capsys.readouterr().out)
    assert "does not run here now" in printed
