"""Something that happens again and again while an alarm is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def again_and_again(act: Callable[[], None], pause_seconds: float = 1.0) -> Iterator[None]:
    """Act in a thread of its own until the block ends. What it raised is raised then: a break that stopped is no break."""
    stop, raised = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            while not stop.wait(pause_seconds):
                act()
        except BaseException as error:  # noqa: BLE001 raised again below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if raised:
        raise raised[0]
