"""One `vllm serve`: started, found again after a restart of this process, and ended with all its workers.

<folder>/server.json   where it answers, and its process
<folder>/lease         touched by `renew`; a server whose lease is old ends itself
<folder>/server.log    what it prints
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from weights.files import write_durably

_END_SECONDS = 8.0
_LOOK_SECONDS = 0.1
_log = structlog.get_logger(__name__)


class RunningServer(msgspec.Struct, frozen=True):
    """What server.json holds."""

    url: str
    process: int
    """Its process id, which is also its process group."""
    instance: str


class ServerProcess:
    """See the module. Not for several threads.

    Args:
        folder: belongs to this server alone.
        command: makes the arguments for a port.
        environment: makes the environment for a lease.
    """

    def __init__(
        self, folder: Path, command: Callable[[int], list[str]], environment: Callable[[Path], dict[str, str]]
    ) -> None:
        self._folder = folder
        self._command = command
        self._environment = environment
        self._child: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._running = self._found()
        if self._running is not None:
            _log.info("vllm_found_again", url=self._running.url, process=self._running.process)

    @property
    def running(self) -> RunningServer | None:
        """The server, if its process lives."""
        if self._running is not None and not self._lives(self._running.process):
            self._kill_group(self._running.process)  # its workers may outlive it
            self._running = self._child = None
        return self._running

    @property
    def address(self) -> tuple[str, str] | None:
        """(URL, instance) of the running process; None if it ended."""
        running = self.running
        return None if running is None else (running.url, running.instance)

    def start(self) -> None:
        """Start a server; it answers much later."""
        self.renew()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with (self._folder / "server.log").open("ab") as output:
            self._child = subprocess.Popen(  # noqa: S603 the operator's interpreter and our module
                self._command(port),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(self._folder / "lease"),
                start_new_session=True,  # a signal to this process's group does not reach it
            )
        self._running = RunningServer(
            f"http://127.0.0.1:{port}", self._child.pid, f"{self._child.pid}-{time.time():.0f}"
        )
        write_durably(self._folder / "server.json", [msgspec.json.encode(self._running)])

    def renew(self) -> None:
        """Say that this process follows the server."""
        (self._folder / "lease").touch()

    def end(self) -> None:
        """End the server and its workers."""
        if (running := self.running) is None:
            return
        os.kill(running.process, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while self._lives(running.process) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)
        self._kill_group(running.process)
        if self._child is not None:
            self._child.wait()
        self._running = self._child = None
        (self._folder / "server.json").unlink(missing_ok=True)

    def _found(self) -> RunningServer | None:
        try:
            found = msgspec.json.decode((self._folder / "server.json").read_bytes(), type=RunningServer)
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        # The number may belong to another process by now: ours has its lease in its environment.
        try:
            environment = Path(f"/proc/{found.process}/environ").read_bytes()
        except OSError:
            return None
        return found if str(self._folder / "lease").encode() in environment else None

    def _lives(self, process: int) -> bool:
        if self._child is not None and self._child.pid == process:
            return self._child.poll() is None
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        return True

    def _kill_group(self, process: int) -> None:
        try:
            os.killpg(process, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
