"""`.ci/run` with a `make` that only notes what it is asked for: the order, one more try, and the limit of time."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
_MAKE = """#!/bin/sh
echo "$*" >>made
case "$BREAKS" in "$1"*) ;; *) exit 0 ;; esac
case "$BREAKS" in
  *-once) [ -n "$PYTEST_ADDOPTS" ] ;;
  *-stands) exec sleep 30 ;;
  *) exit 2 ;;
esac
"""
_TIERS = """check
test
smoke
test-torch CPU=default
test-services
separate-homes
smoke PROFILE=services
test-end-to-end
test-slow
browser
helm
clients
test-vllm
smoke ENGINE=vllm
containers
"""


def ran(folder: Path, breaks: str, seconds: int) -> tuple[int, str, str]:
    """The exit status, what it said, and what was made. `breaks`: a target that fails, `-once` or `-stands` behind it."""
    scripts = ("deploy/services", "deploy/containers", "deploy/clients", "deploy/vllm", "deploy/helm/check")
    stubs = dict.fromkeys((*scripts, "bin/dpkg", "bin/apt-get"), "#!/bin/sh\n") | {"bin/make": _MAKE}
    stubs["bin/id"] = "#!/bin/sh\necho 0\n"
    for name, text in stubs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    environment = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "BREAKS": breaks,
        "MILLRACE_CI_SECONDS": str(seconds),
    }
    done = subprocess.run(  # noqa: S603 the script itself
        [folder / ".ci" / "run"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, (folder / "made").read_text()


@pytest.mark.parametrize(
    ("breaks", "seconds", "status", "said", "made"),
    [
        ("", 4500, 0, "all passed", _TIERS),
        ("test-once", 4500, 0, "FLAKY", _TIERS.replace("test\n", "test\ntest\n", 1)),
        ("test", 4500, 1, "FAILED again: make test", "check\ntest\ntest\n"),
        ("smoke", 4500, 1, "FAILED: make smoke", "check\ntest\nsmoke\n"),
        ("", 650, 0, "SKIPPED: make test-slow", None),
        ("test-stands", 1, 0, "NOT FINISHED: make test", "check\ntest\n"),
    ],
    ids=["all pass", "one more try", "fails twice", "the demo fails", "too little time", "the limit comes"],
)
def test_each_end_of_a_run(
    tmp_path: Path, *, breaks: str, seconds: int, status: int, said: str, made: str | None
) -> None:
    found, printed, targets = ran(tmp_path, breaks, seconds)
    assert (found, said in printed) == (status, True), printed
    assert made is None or targets == made
    if made is None:  # what is short still fits
        assert targets.split()[-1] == "containers"
        assert "test-slow" not in targets
        assert "left out: make test-slow" in printed
