from __future__ import annotations

from pathlib import Path

import pytest

from runtime.logs import LossyFile

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs the device that is always full")
def test_a_full_disk_loses_lines_and_raises_nothing() -> None:
    full = FULL.open("w")  # closing it raises, too
    file = LossyFile(full)
    for _ in range(2000):
        file.write("a line of a log\n")
        file.flush()
    with pytest.raises(OSError, match="space"):
        full.close()
