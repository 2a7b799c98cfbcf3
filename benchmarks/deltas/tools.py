"""Programs that make a patch between two files: zstd, xdelta3 and bsdiff, as Debian packages them.

In: two byte strings, written to temporary files. Out: the patch, or the target again. Waits: for the program to end.
A program that is not on the search path is reported by `missing`, never left out in silence. Figures of time must
come from `cpu_seconds`, since the work happens in another process; it includes the program's start and its files.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from contracts.errors import InvalidValue

_BASE, _TARGET, _PATCH = "base.bin", "target.bin", "patch.bin"


class DeltaTool(NamedTuple):
    """A way to call such a program; each command starts with the program's name."""

    name: str
    package: str
    """What `apt-get install` calls it."""
    diff: tuple[str, ...]
    """Reads the base and the target, writes the patch."""
    patch: tuple[str, ...]
    """Reads the base and the patch, writes the target."""

    @property
    def programs(self) -> tuple[str, ...]:
        """What has to be on the search path."""
        return tuple(dict.fromkeys((self.diff[0], self.patch[0])))


# The manual wants the reader to allow the window that the writer asked for; the largest serves both levels.
_UNZSTD = ("zstd", "-d", "-q", "-f", "--long=31", f"--patch-from={_BASE}", _PATCH, "-o", _TARGET)
TOOLS = (
    DeltaTool(
        # As its manual advises: 1.5.4 with its default of one worker made patches of real weights eleven times as large.
        "zstd -3 --patch-from --single-thread",
        "zstd",
        ("zstd", "-3", "-q", "-f", "--single-thread", f"--patch-from={_BASE}", _TARGET, "-o", _PATCH),
        _UNZSTD,
    ),
    DeltaTool(
        "zstd -19 --patch-from --long=31",
        "zstd",
        ("zstd", "-19", "-q", "-f", "--long=31", f"--patch-from={_BASE}", _TARGET, "-o", _PATCH),
        _UNZSTD,
    ),
    DeltaTool(
        "xdelta3 -9",
        "xdelta3",
        ("xdelta3", "-9", "-e", "-f", "-s", _BASE, _TARGET, _PATCH),
        ("xdelta3", "-d", "-f", "-s", _BASE, _PATCH, _TARGET),
    ),
    DeltaTool("bsdiff", "bsdiff", ("bsdiff", _BASE, _TARGET, _PATCH), ("bspatch", _BASE, _TARGET, _PATCH)),
)


def missing(tool: DeltaTool, search_path: str | None = None) -> str | None:
    """What to install before the tool can run, or None; `search_path` is that of the process by default."""
    absent = [program for program in tool.programs if shutil.which(program, path=search_path) is None]
    return f"{' and '.join(absent)} not on PATH: apt-get install {tool.package}" if absent else None


def make_patch(tool: DeltaTool, base: bytes, target: bytes, search_path: str | None = None) -> bytes:
    """The patch from `base` to `target`.

    Raises:
        InvalidValue: the program is not installed, or failed; the message holds what it said.
    """
    return _run(tool, tool.diff, {_BASE: base, _TARGET: target}, _PATCH, search_path)


def apply_patch(tool: DeltaTool, base: bytes, patch: bytes, search_path: str | None = None) -> bytes:
    """The target that `patch` was made for.

    Raises:
        InvalidValue: the program is not installed, or failed; the message holds what it said.
    """
    return _run(tool, tool.patch, {_BASE: base, _PATCH: patch}, _TARGET, search_path)


def cpu_seconds() -> float:
    """Processor time of this process, and of every child that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def _run(
    tool: DeltaTool, command: Sequence[str], files: Mapping[str, bytes], wanted: str, search_path: str | None
) -> bytes:
    if (instruction := missing(tool, search_path)) is not None:
        raise InvalidValue(instruction, param="peer")
    program = Path(str(shutil.which(command[0], path=search_path))).absolute()  # PATH may hold relative folders
    with tempfile.TemporaryDirectory(prefix="millrace-peer-") as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        done = subprocess.run(  # noqa: S603 our own arguments, on our own files
            [str(program), *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        output = Path(folder) / wanted
        if done.returncode != 0 or not output.is_file():
            said = (done.stderr or done.stdout).strip()[-500:] or "nothing"
            raise InvalidValue(
                f"`{' '.join(command)}` ended with {done.returncode} and said: {said}", param="peer", peer=tool.name
            )
        return output.read_bytes()
