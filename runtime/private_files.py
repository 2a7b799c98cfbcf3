"""Files of a home belong to the user that runs Millrace alone: folders 0700, files 0600."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def create_private_files() -> None:
    """Let only this process's user access the files that it creates from now on."""
    os.umask(_OTHERS)


def make_private(home: Path) -> None:
    """Remove other users' rights from existing files. Files of another owner stay as they are."""
    for path in open_to_others(home):
        # Owned by another user, deleted meanwhile, or on a read-only disk: `millrace doctor` reports it.
        with suppress(OSError):
            path.chmod(stat.S_IMODE(path.lstat().st_mode) & ~_OTHERS)


def open_to_others(home: Path) -> Iterator[Path]:
    """Files and folders of a home that other users may read, write or enter. Links are not followed."""
    for folder, _, files in os.walk(home):
        for path in (Path(folder), *(Path(folder, name) for name in files)):
            with suppress(FileNotFoundError):  # deleted meanwhile
                mode = path.lstat().st_mode
                if not stat.S_ISLNK(mode) and mode & _OTHERS:
                    yield path


def make_secret(path: Path, text: str) -> None:
    """Write a secret to a new file, complete or not at all. If another process was faster, its file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # atomic, and fails if another process was first
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)
