"""The socket that a server listens on: inherited from the supervisor, or its own.

An inherited socket outlives the process: connections that arrive while a killed server restarts wait instead of being refused. Replicas
share one socket, and the first free one accepts the next connection.
"""

from __future__ import annotations

import os
import signal
import socket
import threading

LISTEN_FD = "MILLRACE_LISTEN_FD"
BIND = "MILLRACE_BIND"
"""Address to listen at, if it differs from the one that clients connect to: `0.0.0.0` in a container."""
REPLICA = "MILLRACE_REPLICA"
"""The number of a process among its replicas in one home, from 1; the supervisor sets it."""
HELD_FDS = "MILLRACE_HELD_FDS"
"""Numbers of descriptors, with commas, that a process hands on to those it starts: its card is free once all of them have ended."""
DRAIN = signal.SIGUSR1
"""Tells an engine replica to take no new requests: it goes on with what it has until it is told to end."""
_BACKLOG = 1024


def inherited_socket(variable: str) -> socket.socket | None:
    """The socket whose file descriptor an environment variable names; None without the variable."""
    inherited = os.environ.get(variable)
    return None if inherited is None else socket.socket(fileno=int(inherited))


def held_descriptors() -> list[int]:
    """What `HELD_FDS` names."""
    return [int(number) for number in os.environ.get(HELD_FDS, "").split(",") if number]


def listening_socket(host: str, port: int) -> socket.socket:
    """The inherited socket if there is one, otherwise a new one at host and port."""
    inherited = inherited_socket(LISTEN_FD)
    return inherited or socket.create_server((os.environ.get(BIND, host), port), backlog=_BACKLOG)


def replica_number() -> int:
    """The number of this process among its replicas in one home; 1 without a supervisor."""
    return int(os.environ.get(REPLICA, "1"))


def told_to_drain() -> threading.Event:
    """An event that is set once this process is told to drain; never, if this is not its main thread."""
    told = threading.Event()
    if threading.current_thread() is threading.main_thread():
        signal.signal(DRAIN, lambda *_: told.set())
    return told
