"""What drills share: commands of a release, users who work meanwhile, the audit of a home.

A drill does to real processes what an operator will have to do, and lets the audit say what it cost.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.report import write_report
from runtime.settings import load_settings
from tests.worlds.paths import ROOT
from tests.worlds.processes import end_process

_LONGEST_SECONDS = 600.0


def conduct(name: str, run: Callable[[Path, ExitStack], dict[str, Any]], *, quick: bool) -> int:
    """A drill in a folder of its own, which is left behind unless its figures are `good`; the exit status. `quick`: writes no file."""
    folder = Path(tempfile.mkdtemp(prefix=f"millrace-{name.partition('-')[0]}-"))
    with ExitStack() as stack:
        figures = run(folder, stack)
    if figures["good"]:
        shutil.rmtree(folder)
    else:
        print(f"left for you to look at: {folder}", file=sys.stderr)
    print(json.dumps(figures, indent=1))
    if not quick:
        print(write_report(name, figures).name)
    return 0 if figures["good"] else 1


def millrace(*arguments: str, release: Path = ROOT, environment: Mapping[str, str] | None = None) -> str:
    """What a command of Millrace says. `release`: the folder of its code. Raises SystemExit if it fails."""
    status, words = ask(*arguments, release=release, environment=environment)
    if status:
        raise SystemExit(f"millrace {arguments[0]} ended with {status}: {words}")
    return words


def ask(
    *arguments: str,
    release: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    errors: int | None = subprocess.STDOUT,
) -> tuple[int, str]:
    """Status and words of a command of Millrace. `environment`: instead of this process's. `errors`: None leaves them on the terminal."""
    done = subprocess.run(  # noqa: S603 our own program
        [sys.executable, str(release / "millrace.py"), *arguments], cwd=release, stdout=-1, stderr=errors, text=True, check=False,
        env=environment, timeout=_LONGEST_SECONDS,
    )  # fmt: skip
    return done.returncode, done.stdout


def audit(home: Path, *more: str) -> str:
    """What `millrace audit --deep` says; its progress goes to the terminal. Raises SystemExit if it says nothing of the ledger."""
    status, words = ask("audit", "--deep", "--home", str(home), *more, errors=None)
    if "balanced" not in words:
        raise SystemExit(f"millrace audit ended with {status}: {words}")
    return words


def start_users(stack: ExitStack, home: Path, key: str, out: Path, *, users: int, seed: int) -> subprocess.Popen[bytes]:
    """Users of the reservations example, who work until they are ended. `out`: their own list."""
    settings = load_settings(home)  # on servers, feedback is a process of its own
    where = ["--url", settings.web_url, "--feedback-url", settings.feedback_url, "--key", key, "--out", str(out)]
    habits = ["--seed", str(seed), "--seconds", "100000", "--users", str(users)]
    command = [sys.executable, "-m", "examples.reservations.users", *where, *habits]
    process = subprocess.Popen(command, cwd=ROOT)  # noqa: S603 our own module
    stack.callback(end_process, process)
    return process


def is_ready(port: int) -> bool:
    """Does a process say at /ready that it is?"""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=5.0).is_success
    except httpx.HTTPError:
        return False
