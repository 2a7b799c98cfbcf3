"""What `deploy/first-run` makes of a terminal's output."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

_SCRIPT = runpy.run_path(str(Path(__file__).parent.parent.parent / "deploy" / "first_run.py"))
lines_of, page, parts_of, record = (_SCRIPT[name] for name in ("lines_of", "page", "parts_of", "record"))
_BAR = "\r\x1b[2K     \x1b[38;5;15m━━━━\x1b[0m {}/9.9 MB eta 0:00:0{}"
_WRITTEN: list[tuple[float, str]] = [
    (0.0, "Cloning into '/tmp/x/millrace'...\r\n"),
    (2.5, "Installing what is missing in .venv, once:\r\nLooking in indexes: https://me:word@host/simple\r\n"),
    (3.0, "  Downloading torch\r\n"),
    *((4.0 + step, _BAR.format(f"{step}.3", 9 - step)) for step in range(9)),
    (13.0, _BAR.format("9.9", 0) + "\r\n"),
    (14.0, "one\r\ntwo\r\n\x1b[2A\x1b[2Knew\r\n\x1b[2Klines\r\n"),
    (15.5, ".venv/bin/millrace demo --seed 1\r\n  dashboard     http://127.0.0.1:8/?token=aB-_3\r\n"),
    (16.0, "  app key       sk-millrace-1-2   (shown only once)\r\n  home          /tmp/x/millrace/runs/1\r\n"),
    (20.0, "   5 s  live v1      40 answers\r\n  10 s  live v1      80 answers\r\n"),
]
SEEN = [(at, char) for at, text in _WRITTEN for char in text]
"""A terminal is read by the character."""


def test_a_page_holds_last_states_and_no_secret() -> None:
    made = page(SEEN, 0, {"/tmp/x/millrace": "~/millrace"}, "seed 1")  # noqa: S108 a path that is only text
    shown = made.split("```")[1]
    assert shown.count("MB eta") == 1
    assert "9.9/9.9 MB eta 0:00:00" in shown
    assert "\nnew\nlines\n" in shown
    assert "\x1b" not in made
    assert not [word for word in ("tmp/x", "aB-_3", "sk-millrace", "me:word", "indexes", "two") if word in made]
    assert "token=..." in shown
    assert "app key       ...   (shown only once)" in shown
    assert "| set-up | 2 |" in made


def test_each_part_has_the_second_in_which_it_began() -> None:
    assert parts_of(lines_of(SEEN)) == {
        "the clone": 0.0,
        "set-up": 2.5,
        "`make demo` itself": 15.5,
        "users come, and it learns": 20.0,
    }


def test_commands_run_on_a_terminal_until_one_fails() -> None:
    programs = ("import sys; print(sys.stdout.isatty(), 'é')", "raise SystemExit(3)", "print('never')")
    *chunks, status = record([[sys.executable, "-c", one] for one in programs], {})
    assert status == 3
    assert "".join(chunk[1] for chunk in chunks if not isinstance(chunk, int)) == "True é\r\n"
    assert subprocess.run(["deploy/first-run", "--help"], capture_output=True, check=True).stdout.startswith(b"usage")  # noqa: S607
