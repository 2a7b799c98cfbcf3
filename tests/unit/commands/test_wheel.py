"""The wheel holds every file of the packages, and works where no repository is around it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
PACKAGES = [name.removesuffix("*") for name in SETUPTOOLS["packages"]["find"]["include"]]
READ_BY_THE_DEMO = {
    "examples/reservations/base/model.safetensors",
    "examples/reservations/base/tokenizer.json",
    "examples/reservations/base/chat_template.jinja",
    "examples/reservations/task.toml",
    "examples/reservations/users.py",
    "migrations/env.py",
    "millrace.py",
    "rewards/sandbox/driver.py",
    "services/dashboard/templates/base.html",
    "services/dashboard/static/dashboard.css",
}


def tracked(*paths: str) -> list[str]:
    command = ["git", "ls-files", "-z", *paths]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S603
    return [name for name in names.split("\0") if name and (ROOT / name).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tracked files: setuptools would take files of earlier builds from build/."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked():
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", "dist"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "./source"]
    built = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)  # noqa: S603
    assert built.returncode == 0, built.stderr
    [path] = (folder / "dist").glob("millrace-*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_holds_the_tracked_files_of_every_package(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == set(tracked(*PACKAGES, *(f"{module}.py" for module in SETUPTOOLS["py-modules"])))
    assert names >= READ_BY_THE_DEMO
    assert any(name.startswith("migrations/versions/") for name in names)


@pytest.mark.slow
def test_an_installed_wheel_makes_a_home_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    installed, empty = tmp_path / "installed", tmp_path / "empty"
    empty.mkdir()
    zipfile.ZipFile(wheel).extractall(installed)
    product = installed / "examples" / "reservations"
    options = ["--policy", str(product / "base"), "--task", str(product / "task.toml")]
    command, env = [sys.executable, str(installed / "millrace.py"), "init", *options], {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=empty, env=os.environ | env, check=False, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stdout + done.stderr
    assert (empty / "runs" / "home" / "millrace.toml").exists()
    assert str(ROOT) not in (empty / "runs" / "home" / "millrace.toml").read_text()
