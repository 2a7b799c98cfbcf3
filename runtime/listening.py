"""The socket a server listens on: handed down by the supervisor, or its own.

A socket that outlives the process keeps the connections that arrive while a killed server starts again: they wait
instead of being refused. Replicas share one socket: whoever is free takes the next connection.
"""

from __future__ import annotations

import os
import socket

LISTEN_FD = "MILLRACE_LISTEN_FD"
BIND = "MILLRACE_BIND"
"""The address to bind where it is not the one that others connect to: in a container, `0.0.0.0`."""
_BACKLOG = 1024


def listening_socket(host: str, port: int) -> socket.socket:
    """The inherited socket if there is one, else a new one on host and port."""
    inherited = os.environ.get(LISTEN_FD)
    if inherited is not None:
        return socket.socket(fileno=int(inherited))
    return socket.create_server((os.environ.get(BIND, host), port), backlog=_BACKLOG)
