from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.home import claimed, prepare_home
from runtime.private_files import create_private_files, make_private, open_to_others
from runtime.settings import Settings

ROOT = Path(__file__).parent.parent.parent.parent
PRODUCT = ROOT / "examples" / "reservations"


@pytest.fixture(autouse=True)
def careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_what_is_open_is_found_and_closed(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir(mode=0o777)
    (tmp_path / "log" / "a.db").touch(0o666)
    (tmp_path / "fine").touch(0o600)
    outside = tmp_path.parent / "outside"
    outside.touch(0o644)
    (tmp_path / "link").symlink_to(outside)
    tmp_path.chmod(0o755)
    assert set(open_to_others(tmp_path)) == {tmp_path, tmp_path / "log", tmp_path / "log" / "a.db"}
    make_private(tmp_path)
    assert not list(open_to_others(tmp_path))
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert outside.stat().st_mode & 0o777 == 0o644


def test_a_new_home_and_one_of_an_older_release_are_private(tmp_path: Path) -> None:
    home = tmp_path / "home"
    settings = Settings(
        home=home, run="r", policy="reservations", base=str(PRODUCT / "base"), tasks=(PRODUCT / "task.toml",)
    )
    with claimed(home):
        prepare_home(settings, {})
    assert len(list(home.rglob("*"))) > 10
    assert not list(open_to_others(home))
    for path in (home, *home.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    with claimed(home):
        prepare_home(settings, {})
        assert not list(open_to_others(home))


@pytest.mark.slow
def test_every_process_and_command_creates_private_files() -> None:
    create_private_files()
    assert os.umask(0) == 0o077
    told = "import os, millrace; millrace.main(['keys', 'list', '--home', '/nowhere'])"
    check = f"try:\n    {told.replace('; ', chr(10) + '    ')}\nexcept SystemExit:\n    print(oct(os.umask(0)))"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603 our own code
    assert done.stdout.strip() == "0o77"
