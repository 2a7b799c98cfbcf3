"""What escaping programs try to reach, and a fake sandbox that refuses nothing."""

from __future__ import annotations

import os
import secrets
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rewards.sandbox.port import Ran, SandboxLimits, interpreter
from tests.worlds.paths import ROOT

ALLOW_ALL = struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)
"""A filter of one instruction, which refuses nothing."""
SOURCE = ROOT / "rewards" / "verifiers" / "code.py"


class SandboxWorld:
    """A secret, listeners and this process. Afterwards it reports whether anything was touched."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.secret = folder / "secret"
        self.secret.write_text("secret")
        self.secret.chmod(0o644)
        folder.chmod(0o777)
        self.marker = "millrace" + secrets.token_hex(8)
        self.tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.udp.bind(("127.0.0.1", 0))
        self.unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        self.unix.bind(str(folder / "socket"))
        self.unix.listen()
        self.abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        self.abstract.bind("\0" + self.marker)
        self.abstract.listen()
        for listener in (self.tcp, self.udp, self.unix, self.abstract):
            listener.setblocking(False)
        self.inherited = os.open(self.secret, os.O_RDONLY)
        os.set_inheritable(self.inherited, True)
        stack.callback(os.close, self.inherited)
        self._before = self._files()
        self._limits = (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0))

    def as_argument(self, *, is_bare: bool = False) -> dict[str, Any]:
        """What a program is told about its surroundings. `is_bare`: it runs without a sandbox."""
        return {
            "secret": str(self.secret),
            "folder": str(self.folder),
            "unix": str(self.folder / "socket"),
            "abstract": self.marker,
            "tcp": self.tcp.getsockname()[1],
            "udp": self.udp.getsockname()[1],
            "grader": os.getpid(),
            "source": str(SOURCE),
            "marker": self.marker,
            "is_bare": is_bare,
        }

    def touched(self) -> list[str]:
        """The parts that a program reached or changed."""
        found = []
        for name, listener in (("tcp", self.tcp), ("unix", self.unix), ("abstract", self.abstract)):
            try:
                listener.accept()[0].close()
                found.append(name)
            except BlockingIOError:
                pass
        try:
            self.udp.recv(10)
            found.append("udp")
        except BlockingIOError:
            pass
        if self._files() != self._before:
            found.append("files")
        if (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)) != self._limits:
            found.append("scheduling")
        return found

    def children(self) -> list[str]:
        """The child processes of this one, zombies included."""
        return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()

    def survivors(self) -> list[str]:
        """Processes that carry the marker, once they have had a second to go."""
        deadline = time.monotonic() + 1
        while (found := self._marked()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def _files(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        for path in self.folder.iterdir():
            status = path.lstat()
            found[path.name] = (status.st_mode, status.st_nlink, status.st_size, status.st_gid, status.st_mtime_ns)
        return found

    def _marked(self) -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if self.marker.encode() in path.read_bytes():
                    found.append(path.parent.name)
            except OSError:  # it ended while we looked
                continue
        return found


@contextmanager
def open_world(folder: Path) -> Iterator[SandboxWorld]:
    """A world in this folder; its sockets and files are closed at the end."""
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        yield SandboxWorld(folder, stack)


class NoSandbox:
    """Runs the driver as it is, and its filter refuses nothing: what attacks are compared with, and the probe has to refuse."""

    name = "none"

    def __init__(self, instructions: bytes | None = None) -> None:
        self._filter = ALLOW_ALL if instructions is None else instructions

    def run(self, stdin: bytes, limits: SandboxLimits) -> Ran:
        """As `Sandbox.run`. Raises subprocess.TimeoutExpired."""
        done = subprocess.run(  # noqa: S603 our own command
            [*interpreter().command[:-1], self._filter.hex()],
            input=stdin,
            capture_output=True,
            timeout=limits.seconds,
            check=False,
        )
        return Ran("exit", done.returncode, done.stdout, done.stderr)
