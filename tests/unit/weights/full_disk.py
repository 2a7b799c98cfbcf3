"""A disk that is full for one file: what its last sync says, as on a network file system."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch


@contextmanager
def full_disk(name: str) -> Iterator[None]:
    """No file whose path ends with `name` can be made durable."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()).endswith(name):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with patch("os.fsync", fsync):
        yield
