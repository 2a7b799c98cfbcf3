"""Opens the files that an operator names. Whoever made them may have made them a pipe, a device, or far too large."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 2**26
"""Of settings, tasks, sentinels, labels: real ones have a thousandth of it."""


def open_plain(path: Path) -> BinaryIO:
    """A plain file, to read. It never waits for a writer. Raises OSError: it cannot be read, or is something else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return os.fdopen(descriptor, "rb")


def read_small(path: Path, most_bytes: int = MAX_BYTES) -> bytes:
    """The content of a plain file. Raises OSError: it cannot be read, is no plain file, or has more than `most_bytes`."""
    with open_plain(path) as file:
        # A file of /proc says that it is empty, and one that grows said less than it has.
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most_bytes else file.read(most_bytes + 1)
    if max(size, len(content)) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes // 2**20} MiB", str(path))
    return content
