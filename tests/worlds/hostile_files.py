"""Files that an operator may be handed, and that no reader may wait for, swallow whole, or end with a traceback for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

SPARSE_BYTES = 3 * 2**30


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, SPARSE_BYTES)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


HOSTILE_FILES: dict[str, Callable[[Path], object]] = {
    "sparse": _sparse,
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "a link to itself": _loop,
    "not text": lambda path: path.write_bytes(b"\xff\xfe\x00" * 100),
    "deep": lambda path: (
        path.write_text("a = " + "[" * 100_000) if path.suffix == ".toml" else path.write_text("[" * 100_000)
    ),
    "another kind": lambda path: path.write_text("[[1, 2], null]"),
}
"""By name, what makes one at a path."""
