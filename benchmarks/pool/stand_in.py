"""A process that stands for one of a home's, and computes nothing: `stand_in.py engine --home HOME --supervised`.

In: its cards, from the environment; the load, from HOME/load. Out: /ready and /metrics as the real one; a line in HOME/violations if a card of
it is in use already. Waits for: a signal, or the end of its supervisor, after which it goes on for a moment as a real one does.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path

from runtime.listening import told_to_drain
from runtime.metrics import ENGINE_IN_FLIGHT, LAG_RECORDS, USERS_IN_FLIGHT
from runtime.operations import Operations

_LAST_SECONDS = 0.3
"""A request that ends, or a checkpoint."""


def main() -> None:
    """The process."""
    name, home = sys.argv[1], Path(sys.argv[3])
    stop, draining = threading.Event(), told_to_drain()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_follow, args=(stop,), daemon=True).start()
    cards = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name in {"engine", "training"} else []
    held = [_take(home, card, name) for card in cards]
    if name == "engine":
        ENGINE_IN_FLIGHT.labels("live").set_function(lambda: 0.0 if draining.is_set() else 1.0)
    if name == "web":
        USERS_IN_FLIGHT.labels("product").set_function(lambda: float((home / "load").read_text()))
    if name == "training":
        LAG_RECORDS.labels("training", "experiences", "0").set(1000)
    operations = Operations()
    stop.wait()
    time.sleep(_LAST_SECONDS)
    operations.close()
    for descriptor in held:
        os.close(descriptor)


def _take(home: Path, card: str, name: str) -> int:
    descriptor = os.open(home / f"in-use-{card}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with (home / "violations").open("a") as file:
            file.write(f"{name} {os.getpid()} found card {card} in use\n")
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{name} {os.getpid()}".encode(), 0)
    return descriptor


def _follow(stop: threading.Event) -> None:
    while os.read(sys.stdin.fileno(), 1024):
        pass
    stop.set()


if __name__ == "__main__":
    main()
