"""Nobody but the user that runs Millrace reads a home: folders 0700, files 0600."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def create_private_files() -> None:
    """What this process creates from now on is its user's alone."""
    os.umask(_OTHERS)


def make_private(home: Path) -> None:
    """Take away what others may do with files that are there; those of another owner stay as they are."""
    for path in open_to_others(home):
        # Another owner's, gone by now, or on a disk that takes no writes: `millrace doctor` names it.
        with suppress(OSError):
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~_OTHERS)


def open_to_others(home: Path) -> Iterator[Path]:
    """Files and folders of a home that somebody else may read, write or enter. Links are not followed."""
    for folder, _, files in os.walk(home):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            with suppress(FileNotFoundError):  # gone while we look
                mode = path.lstat().st_mode
                if not stat.S_ISLNK(mode) and mode & _OTHERS:
                    yield path
