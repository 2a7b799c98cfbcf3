"""A first run as a newcomer sees it: clone, `make demo`, and all that a terminal showed, in docs/first-run.md.

`deploy/first-run` starts it. Only what every Python has is imported: nothing is installed yet.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import platform
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_COLUMNS, _ROWS = 120, 50
_SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b.")
_PARTS = {
    "the clone": r"^Cloning into",
    "set-up": r"^Installing what",
    "compiling": r"^Compiling on",
    "`make demo` itself": r"millrace demo --seed",
    "the base policy is measured": r"^base policy:",
    "users come, and it learns": r"^\s+\d+ s\s.*answers",
    "users have stopped": r"^users have stopped",
}
"""Parts of a run, and the line with which each begins. One that is not found is left out."""
_SECRETS = (
    (re.compile(r"token=[\w.~-]+"), "token=..."),
    (re.compile(r"(?m)^(\s*app key\s+)\S+"), r"\1..."),
    (re.compile(r"://[^\s/@]+@"), "://"),
    (re.compile(r"(?m)^Looking in (indexes|links): .*\n"), ""),
)

Chunk = tuple[float, str]
"""Seconds since the start, and what was printed then."""


def lines_of(chunks: Iterable[Chunk]) -> list[Chunk]:
    """What stands on the terminal at the end, line by line, with the second in which each line began.

    A line that was written over (a progress bar) has its last state. Colours are dropped.
    """
    rows, began, row, column = [""], [0.0], 0, 0
    text, times = "", list[float]()  # a sequence may be in several chunks
    for seconds, part in chunks:
        text += part
        times += [seconds] * len(part)
    place = 0
    while place < len(text):
        code, seconds = _SEQUENCE.match(text, place), times[place]
        place, char = (code.end(), "") if code else (place + 1, text[place])
        if code and code[2] == "A":
            row = max(0, row - int(code[1] or 1))
        elif code and code[2] == "K":
            rows[row] = "" if code[1] == "2" else rows[row][:column]
        elif char == "\r":
            column = 0
        elif char == "\n":
            row, column = row + 1, 0
            if row == len(rows):
                rows.append("")
                began.append(seconds)
        elif char:
            if not rows[row]:
                began[row] = seconds
            rows[row] = rows[row][:column].ljust(column) + char + rows[row][column + 1 :]
            column += 1
    return [(at, line.rstrip()) for at, line in zip(began, rows, strict=True)]


def parts_of(lines: Iterable[Chunk]) -> dict[str, float]:
    """The second in which each part began."""
    found: dict[str, float] = {}
    for at, line in lines:
        for name, pattern in _PARTS.items():
            if name not in found and re.search(pattern, line):
                found[name] = at
    return found


def neutral(text: str, places: dict[str, str]) -> str:
    """Without keys, tokens and addresses of this machine; `places`: paths, and what stands for them."""
    for place, stands in sorted(places.items(), key=lambda item: -len(item[0])):
        text = text.replace(place, stands)
    for pattern, stands in _SECRETS:
        text = pattern.sub(stands, text)
    return text


def page(chunks: Iterable[Chunk], status: int, places: dict[str, str], facts: str) -> str:
    """The whole file."""
    lines = lines_of(chunks)
    times = "".join(f"| {name} | {at:.0f} |\n" for name, at in parts_of(lines).items())
    shown = neutral("\n".join(line for _, line in lines), places).strip("\n")
    return (
        f"# A first run\n\nThe whole output of `git clone` and `make demo`, written by `deploy/first-run`: {facts}. "
        f"Progress bars show their last state; keys are left out. It ended with status {status}.\n\n"
        f"| Part | began after, s |\n|---|--:|\n{times}| the end | {lines[-1][0]:.0f} |\n\n```text\n{shown}\n```\n"
    )


def record(commands: Sequence[Sequence[str]], environment: dict[str, str]) -> Iterator[Chunk | int]:
    """Run one after the other on a terminal until one fails: what they print, then the status of the last one."""
    started, status = time.monotonic(), 0
    for command in commands:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        with subprocess.Popen(  # noqa: S603 git and make
            command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment
        ) as process:
            os.close(theirs)
            with (
                os.fdopen(ours, encoding="utf-8", errors="replace", newline="", buffering=1) as said,
                contextlib.suppress(OSError),
            ):
                while text := said.read(1):
                    yield time.monotonic() - started, text
        if status := process.returncode:
            break
    yield status


def main(arguments: Sequence[str]) -> int:
    """Run, show, write; returns the status of `make demo`."""
    parser = argparse.ArgumentParser(prog="deploy/first-run")
    parser.add_argument("seed", nargs="?", type=int, default=1)
    parser.add_argument("--no-cache", action="store_true", help="pip downloads everything, as on a fresh machine")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="millrace-first-run-") as folder:
        clone = f"{folder}/millrace"
        environment = os.environ | {"TERM": "xterm"} | ({"PIP_NO_CACHE_DIR": "1"} if options.no_cache else {})
        commands = (
            ["git", "clone", "--no-local", str(ROOT), clone],
            ["make", "-C", clone, "demo", f"SEED={options.seed}"],
        )
        chunks: list[Chunk] = []
        status = 0
        for item in record(commands, environment):
            if isinstance(item, int):
                status = item
            else:
                chunks.append(item)
                sys.stdout.write(item[1])
                sys.stdout.flush()
        cache = "pip's cache off" if options.no_cache else "pip's cache as it was"
        facts = f"seed {options.seed}, {os.cpu_count()} cores, Python {platform.python_version()}, {cache}"
        places = {clone: "~/millrace", str(ROOT): "millrace", str(Path.home()): "~", platform.node(): "laptop"}
        (ROOT / "docs" / "first-run.md").write_text(page(chunks, status, places, facts))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
