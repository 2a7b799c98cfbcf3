"""What only the log in files can suffer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.errors import Unavailable
from contracts.event_log import Message
from contracts.local_log import LocalLog


@pytest.mark.parametrize(
    "use",
    [
        lambda log: log.append([Message("signals", 0, "k", b"v")]),
        lambda log: log.read("signals", 0, 0, 1),
        lambda log: log.ends("signals"),
    ],
)
def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Path, use: Callable[[LocalLog], object]) -> None:
    (tmp_path / "signals.db").mkdir()
    log = LocalLog(tmp_path)
    with pytest.raises(Unavailable, match="free disk space"):
        use(log)
    log.close()
