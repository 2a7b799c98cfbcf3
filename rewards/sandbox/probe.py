"""A program that tries to leave its sandbox. Never imported: it runs inside, before anything else is let in."""

import os
import resource
import signal
import socket
from collections.abc import Callable


def ways_out(secret: str, folder: str, port: int, grader: int, most_processes: int) -> list[str]:
    """What it could do of what no program may."""
    tried: dict[str, Callable[[], object]] = {
        "reading files": lambda: os.open(secret, os.O_RDONLY),
        "writing files": lambda: os.open(folder + "/written", os.O_WRONLY | os.O_CREAT),
        "changing files": lambda: os.chmod(secret, 0o600),  # noqa: PTH101 as few imports as can be
        "reaching the network": lambda: socket.create_connection(("127.0.0.1", port), timeout=1),
        "signalling its grader": lambda: os.kill(grader, 0),
        "changing its grader's limits": lambda: resource.prlimit(grader, resource.RLIMIT_CORE),
        "starting processes without end": lambda: start_processes(2 * most_processes),
        "keeping rights": lambda: os.chroot("/"),
    }
    found = []
    for name, attempt in tried.items():
        try:
            attempt()
        except OSError:
            continue
        found.append(name)
    return found


def start_processes(count: int) -> None:
    """Raises OSError once no more are to be had."""
    children: list[int] = []
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
