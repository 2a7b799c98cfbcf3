"""The process `vllm`: one server per slot, or one for all arms where the policy is trained by an adapter; one decoder for all of them.

Each server has a thread that follows its assignments.

A server is found again after a restart of this process, and ended with all its workers:

<folder>/server.json   where it answers, and its process
<folder>/lease         touched by `renew`; a server whose lease is old ends itself
<folder>/server.log    what it prints
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from contracts.assignments import LIVE, SLOTS
from contracts.errors import InvalidSettings
from engines.cards import environment_on
from engines.following.driver import ServerFacts
from engines.following.follower import GivenServer, ServerFollower, SlotFollower
from engines.following.process import Host, follow
from engines.vllm.adapter_server import AdapterServer
from engines.vllm.adapters import adapter_arguments, adapter_rank, check_base, check_facts
from engines.vllm.arms import ArmsFollower
from engines.vllm.deliver import VllmServer
from engines.vllm.launch import check_build, make_plug_in, serve_command, serve_environment
from engines.vllm.settings import VllmSettings
from engines.vllm.sizing import num_servers, sized
from runtime.engine_key import engine_key
from runtime.listening import held_descriptors, replica_number
from runtime.settings import load_section, load_settings
from weights.files import write_durably

_END_SECONDS = 8.0
_LOOK_SECONDS = 0.1
_log = structlog.get_logger(__name__)


def main(home: Path, stop: threading.Event) -> None:
    """Follow until `stop` is set; then end the servers. Raises InvalidSettings: the interpreter does not exist, or as `check_build`. Others as `follow`."""
    settings, own = load_settings(home), load_section(home, "vllm", VllmSettings)
    if own.python is not None and not os.access(own.python, os.X_OK):
        raise InvalidSettings(f"[vllm] python: {own.python} is no interpreter; `make vllm` makes .vllm/bin/python")
    if own.python is not None and not own.urls:
        check_build(own.python, settings.device)
    number = replica_number()
    if number > 1:  # each replica has a card, and servers of its own
        own = own.model_copy(update={"name": f"{own.name}-{number}"})
    rank, host = adapter_rank(home), Host.of(settings, "vllm" if number == 1 else f"vllm-{number}", own.weights)
    followers: list[ServerFollower[Any]]
    if rank is None:
        followers = [_slot_follower(host, own, number) for number in range(len(own.slots))]
    else:
        own = with_adapters(own, rank)
        followers = [_arms_follower(host, own, number) for number in range(len(own.slots))]
    follow(host, followers, stop)


def with_adapters(own: VllmSettings, rank: int) -> VllmSettings:
    """The settings where each server holds every arm, as adapters: so many servers as are given, or as one arm is named."""
    urls = tuple(dict.fromkeys(own.urls))
    slots = (LIVE,) * (len(urls) or num_servers(own, rank))
    arguments = (*adapter_arguments(rank, len(SLOTS)), *own.arguments)
    return own.model_copy(update={"urls": urls, "slots": slots, "arguments": arguments})


def _slot_follower(host: Host, own: VllmSettings, number: int) -> SlotFollower:
    return host.follower(SlotFollower, "vllm", (own.slots[number],), drive=VllmServer, **_parts(host, own, number))


def _arms_follower(host: Host, own: VllmSettings, number: int) -> ArmsFollower:
    base, parts = Path(host.settings.base), _parts(host, own, number)
    make = partial(ArmsFollower, base=base, base_root=host.base_root, probe_of=host.probe_of)

    def check(facts: ServerFacts, url: str) -> None:
        check_facts(facts, host.settings, url)
        check_base(facts, base, host.base_root(), url)

    return host.follower(make, "vllm", SLOTS, drive=AdapterServer, **(parts | {"check": check}))


def _parts(host: Host, own: VllmSettings, number: int) -> dict[str, Any]:
    """What followers of either sort have: see `Host.follower`."""
    settings, name = host.settings, f"{own.name}-{number + 1}"
    key, is_cpu, plug_in = engine_key(settings.home), settings.device == "cpu", make_plug_in(host.folder / "plug_in")
    server = (
        GivenServer(own.urls[number])
        if own.urls
        else ServerProcess(
            host.folder / name,
            lambda port: serve_command(
                sized(settings, own), settings.policy, Path(settings.base), port=port, is_cpu=is_cpu
            ),
            lambda lease: serve_environment(environment_on(settings.device), plug_in, lease, key, own),
        )
    )
    return {
        "name": name,
        "region": own.region or settings.region,
        "server": server,
        "check": lambda facts, url: check_facts(facts, settings, url),
    }


class RunningServer(msgspec.Struct, frozen=True):
    """What server.json holds. `process`: its process id, which is also its process group."""

    url: str
    process: int
    instance: str


class ServerProcess:
    """One `vllm serve`. Not for several threads. `command`: makes the arguments for a port. `environment`: makes it for a lease."""

    def __init__(
        self, folder: Path, command: Callable[[int], list[str]], environment: Callable[[Path], dict[str, str]]
    ) -> None:
        self._folder, self._command, self._environment = folder, command, environment
        self._child: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        if (found := self._found()) is not None:
            _log.info("vllm_found_again", url=found.url, process=found.process)
        self._running = found

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
        return None if (running := self.running) is None else (running.url, running.instance)

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
                pass_fds=held_descriptors(),  # its card is taken for as long as it lives
                start_new_session=True,  # a signal to this process's group does not reach it
            )
        process = self._child.pid
        self._running = RunningServer(f"http://127.0.0.1:{port}", process, f"{process}-{time.time():.0f}")
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
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process, signal.SIGKILL)
