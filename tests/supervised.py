"""A home whose processes run, and are started again when they die."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

from commands import supervisor as supervisors
from commands.home import Home
from commands.supervisor import Supervisor
from commands.up import running
from tests.forked import children_forked


@contextmanager
def supervised(
    home: Home, sockets: Mapping[str, socket.socket], *, only_servers: bool = False, forked: bool = False
) -> Iterator[Supervisor]:
    """Start the processes, wait until they are ready, watch them, and stop them at the end of the block.

    Args:
        home: prepared.
        sockets: of its servers.
        only_servers: answers are given and logged, and nothing is joined, learned or released: half of the start.
        forked: the processes need not import, see `tests/forked.py`.
    """
    workers = () if only_servers else supervisors.WORKERS
    with (
        children_forked() if forked else nullcontext(),
        patch.object(supervisors, "WORKERS", workers),
        running(home, sockets) as supervisor,
    ):
        stop = threading.Event()
        watcher = threading.Thread(target=supervisor.watch, args=(stop,))
        watcher.start()
        try:
            yield supervisor
        finally:
            stop.set()
            watcher.join()
