"""`deploy/vllm` with a Python that only makes folders: what it replaces and what it leaves alone."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from engines.vllm.server.launcher import refusal_of

ROOT = Path(__file__).parents[4]
_STUBS = {
    "python3": """#!/bin/sh
case "$1$2" in -mvenv) mkdir -p "$3/bin"; printf '#!/bin/sh\\n' >"$3/bin/python"; chmod +x "$3/bin/python" ;; esac
""",
    "df": "#!/bin/sh\necho 99G\n",
    "uname": "#!/bin/sh\necho x86_64\n",
}


def made(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    """The exit status and what was said."""
    commands = tmp_path / "bin"
    commands.mkdir(exist_ok=True)
    for name, text in _STUBS.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    environment = {"PATH": f"{commands}:{os.environ['PATH']}", "MILLRACE_VLLM": str(tmp_path / "place")}
    done = subprocess.run(  # noqa: S603 the script itself
        [ROOT / "deploy" / "vllm", *arguments], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("thesis.tex", "was not made by this script"),
        ("lib/python3.11/site-packages/vllm-0.30.0.dist-info/METADATA", "has vLLM for GPUs, of other pins"),
    ],
)
def test_what_it_did_not_make_or_is_for_gpus_stays(tmp_path: Path, file: str, says: str) -> None:
    kept = tmp_path / "place" / file
    kept.parent.mkdir(parents=True)
    kept.touch()
    status, said = made(tmp_path)
    assert (status, says in said, kept.exists()) == (1, True, True), said


def test_an_empty_folder_is_filled_and_what_was_begun_is_made_anew(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    assert made(tmp_path)[0] == 0
    (place / ".ready").write_text("making\n")
    (place / "old").touch()
    status, said = made(tmp_path)
    assert (status, (place / "old").exists()) == (0, False), said
    assert (place / ".ready").read_text().startswith("0.32.0 ")
    assert made(tmp_path) == (0, "")


def test_what_it_installs_is_supported_by_the_plug_in() -> None:
    pins = re.findall(r"want=\(\S+ (\S+)", (ROOT / "deploy" / "vllm").read_text())
    assert len(pins) == 2
    assert [refusal_of(pin) for pin in pins] == [None, None]


@pytest.mark.parametrize(("given", "cuda"), [("", False), ("CUDA=0", False), ("CUDA=1", True)])
def test_make_asks_for_cuda_only_where_it_is_wanted(given: str, *, cuda: bool) -> None:
    command = ["make", "--dry-run", "--always-make", "vllm", *given.split()]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603 fixed
    assert ("deploy/vllm cuda" in printed) is cuda
