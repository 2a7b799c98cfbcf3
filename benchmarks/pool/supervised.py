"""A supervisor with a pool whose processes are stand-ins, and whose hours are minutes: `python -m benchmarks.pool.supervised HOME`."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from benchmarks.pool.stand_in import __file__ as stand_in
from commands.cards.demand import read_figures
from commands.cards.keeper import CardKeeper
from commands.cards.locks import locked
from commands.home import claimed
from commands.supervisor import Supervisor
from engines.card_users import GpuSettings

POOL = GpuSettings(pool=(0, 1, 2, 3), floor=1)
_FASTER = 60.0
_PATIENCE_SECONDS = 30 * _FASTER


def main(home: Path) -> None:
    """Until it is killed."""
    moving = ("engine", "training", "episodes", "rewards", "release")
    with claimed(home), locked(POOL.pool, "cpu", home, home) as locks:
        supervisor = Supervisor(home, {}, _say, more=("web",), without=moving, program=(sys.executable, str(stand_in)))
        keeper = CardKeeper(
            home, POOL, "engine", "cpu", locks=locks, children=supervisor, measure=lambda: read_figures(supervisor.addresses()),
            health=lambda _: "", patience=_PATIENCE_SECONDS, report=_say, clock=lambda: time.monotonic() * _FASTER,
        )  # fmt: skip
        supervisor.start()
        keeper.start()
        supervisor.tend(keeper.step)
        supervisor.watch(threading.Event())


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
