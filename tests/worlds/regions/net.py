"""Regions on one machine: network namespaces joined to a trainer's, over links with a rate, a round trip and loss.

    trainer 10.203.i.1 ── to<i> ── veth ── [wire] ── veth ── up ── 10.203.i.2 region i

In: one `Link` per region. Out: a `Network` to run processes in. Waits: for `ip` and `tc`, and for the wire to be ready.
The rate is the kernel's (tc tbf at both ends). Delay and loss are the kernel's too (tc netem) where it has netem. Where
it has not, the two ends meet in a third namespace, where a process (`tests.worlds.regions.wire`) carries the frames: each waits its
time, and the kernel drops the given share by a filter on the socket that reads them. TCP is the kernel's own in both
cases, a frame is at most 1500 bytes (no offload joins them), and a lost one is truly lost. What differs: the wire looks
once a millisecond, so a round trip is off by a millisecond or two, and each busy region takes a part of a core.

Addresses exist only inside of the namespaces.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from contracts.errors import Unavailable
from tests.worlds.paths import ROOT

_PREFIX = "millrace-regions"
_NAMESPACES = Path("/run/netns")
_BURST_BYTES = 32 * 1024
_QUEUE_SECONDS = 0.1
_NETEM_FRAMES = 10_000
_STOP_SECONDS = 5.0
_SYSCTLS = {
    "tcp_congestion_control": "bbr",  # the one in most kernels that 1% loss does not stop
    "tcp_slow_start_after_idle": "0",
    "tcp_no_metrics_save": "1",  # a run must not start from what the one before it learned
    "tcp_wmem": "4096 65536 16777216",
    "tcp_rmem": "4096 131072 33554432",
}
_OPTIONAL = {"tcp_congestion_control"}


@dataclass(frozen=True)
class Link:
    """What lies between the trainer and a region; rate and loss hold for each direction."""

    round_trip_ms: float
    rate_mbit: float = 100.0
    loss: float = 0.01

    def seconds(self, num_bytes: int) -> float:
        """What `num_bytes` take at the plain rate: no headers, no loss, no round trip."""
        return num_bytes * 8 / (self.rate_mbit * 1e6)


@dataclass(frozen=True)
class NetPlace:
    """A namespace that processes run in."""

    namespace: str


@dataclass(frozen=True)
class Region(NetPlace):
    """`address` is its own, `trainer_address` that of the trainer as seen from it."""

    name: str
    address: str
    trainer_address: str
    link: Link


def spread_links(num_regions: int, shortest_ms: float = 50.0, longest_ms: float = 150.0) -> list[Link]:
    """Links whose round trips lie evenly between the two."""
    step = (longest_ms - shortest_ms) / max(1, num_regions - 1)
    return [Link(shortest_ms + step * number) for number in range(num_regions)]


class Network:
    """The namespaces of this process; see `network`.

    Args:
        links: one per region.
        netem: whether the kernel delays and drops; else the wire does.
    """

    def __init__(self, links: Sequence[Link], *, netem: bool) -> None:
        self.shaping = "tbf and netem" if netem else "tbf and a wire in user space"
        self.trainer = NetPlace(_namespace("trainer"))
        self.regions = [
            Region(_namespace(f"r{i}"), f"r{i}", f"10.203.{i}.2", f"10.203.{i}.1", link) for i, link in enumerate(links)
        ]
        self._netem = netem
        self._wire = NetPlace(_namespace("wire"))
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def congestion_control(self) -> str:
        """What TCP does about loss, in all namespaces."""
        return _command("ip", "netns", "exec", self.trainer.namespace, "cat", _sysctl("tcp_congestion_control")).strip()

    def run_in(
        self,
        place: NetPlace,
        argv: Sequence[str],
        *,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a process in a region or at the trainer, in the repository's root; it ends with the network at the latest.

        Its id is that of the process itself, so that a signal reaches it.
        """
        process = subprocess.Popen(  # noqa: S603 what the benchmark asks for
            ["ip", "netns", "exec", place.namespace, *argv],  # noqa: S607 wherever the system keeps it
            stdout=stdout,
            stderr=stderr,
            env=None if environment is None else {**os.environ, **environment},
            cwd=ROOT,
        )
        self._processes.append(process)
        return process

    def cut(self, region: Region) -> None:
        """Take the link away. The region is not told: what it sends is lost, and nothing answers."""
        _command("ip", "-n", self.trainer.namespace, "link", "set", "dev", self._device(region), "down")

    def mend(self, region: Region) -> None:
        """Undo `cut`."""
        _command("ip", "-n", self.trainer.namespace, "link", "set", "dev", self._device(region), "up")

    def build(self) -> None:
        """Make everything.

        Raises:
            Unavailable: a command failed.
        """
        for place in (self.trainer, *self.regions, *(() if self._netem else (self._wire,))):
            _command("ip", "netns", "add", place.namespace)
            _command("ip", "-n", place.namespace, "link", "set", "dev", "lo", "up")
        for place in (self.trainer, *self.regions):
            _tune(place.namespace)
        for region in self.regions:
            self._join(region)
        if not self._netem:
            self._start_wire()

    def tear_down(self) -> None:
        """Stop what was started, remove what was made; whatever is missing already is passed over."""
        for process in self._processes:
            process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for namespace in _namespaces_of(os.getpid()):
            _remove(namespace)

    def _join(self, region: Region) -> None:
        near, number = self._device(region), self.regions.index(region)
        if self._netem:
            _veth(self.trainer.namespace, near, region.namespace, "up")
        else:
            _veth(self.trainer.namespace, near, self._wire.namespace, f"near{number}")
            _veth(region.namespace, "up", self._wire.namespace, f"far{number}")
        for namespace, device, address in (
            (self.trainer.namespace, near, region.trainer_address),
            (region.namespace, "up", region.address),
        ):
            _command("ip", "-n", namespace, "address", "add", f"{address}/30", "dev", device)
            for shaper in _shapers(region.link, netem=self._netem):
                _command("tc", "-n", namespace, "qdisc", "add", "dev", device, *shaper)

    def _start_wire(self) -> None:
        links = [
            f"near{i},far{i},{region.link.round_trip_ms},{region.link.loss}" for i, region in enumerate(self.regions)
        ]
        wire = self.run_in(
            self._wire, [sys.executable, "-m", "tests.worlds.regions.wire", *links], stdout=subprocess.PIPE
        )
        if wire.stdout is None or not wire.stdout.readline():
            raise Unavailable("the wire between the namespaces did not start: see what it wrote above")

    def _device(self, region: Region) -> str:
        return f"to{self.regions.index(region)}"


@contextmanager
def network(links: Sequence[Link]) -> Iterator[Network]:
    """The trainer's namespace and one per link; gone afterwards, as is what a killed run left.

    Raises:
        Unavailable: it cannot be had here; `why_not` says why beforehand.
    """
    if (reason := why_not()) is not None:
        raise Unavailable(reason)
    remove_stale()
    made = Network(links, netem=_has_netem())
    try:
        made.build()
        yield made
    finally:
        made.tear_down()


def why_not() -> str | None:
    """Why there can be no regions on this machine, and what to do; None when there can."""
    if sys.platform != "linux":
        return "regions need network namespaces: run this on Linux"
    if os.geteuid() != 0:
        return "regions need network namespaces: run this as root"
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"regions need {' and '.join(missing)}: install iproute2"
    try:
        with _probe() as namespace:
            _command("tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", *_token_bucket(Link(0.0)))
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except (Unavailable, OSError) as error:
        return f"regions cannot be made here ({error}): it takes CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW and tbf"
    return None


def remove_stale() -> None:
    """Remove what runs left whose process is dead, and the processes in it."""
    for namespace in _namespaces_of(None):
        if not Path(f"/proc/{_owner(namespace)}").exists():
            _remove(namespace)


def _has_netem() -> bool:
    try:
        with _probe() as namespace:
            _command("tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except Unavailable:
        return False
    return True


@contextmanager
def _probe() -> Iterator[str]:
    namespace = _namespace("probe")
    _command("ip", "netns", "add", namespace)
    try:
        yield namespace
    finally:
        _remove(namespace)


def _namespace(name: str) -> str:
    return f"{_PREFIX}-{os.getpid()}-{name}"


def _owner(namespace: str) -> int:
    match = re.fullmatch(rf"{_PREFIX}-(\d+)-\w+", namespace)
    return int(match[1]) if match else 0


def _namespaces_of(owner: int | None) -> list[str]:
    """Ours by name: of one process, or (None) of all."""
    found = [entry.name for entry in _NAMESPACES.iterdir()] if _NAMESPACES.is_dir() else []
    return [name for name in found if _owner(name) and owner in {None, _owner(name)}]


def _remove(namespace: str) -> None:
    for process in _command("ip", "netns", "pids", namespace).split():
        os.kill(int(process), signal.SIGKILL)
    _command("ip", "netns", "delete", namespace)


def _veth(namespace: str, device: str, other_namespace: str, other_device: str) -> None:
    ends = ((namespace, device), (other_namespace, other_device))
    # Born where they belong: nothing of the machine's own network is touched, nothing can be left there.
    _command(
        *("ip", "link", "add", "name", device, "netns", namespace, "type", "veth"),
        *("peer", "name", other_device, "netns", other_namespace),
    )
    for where, name in ends:
        # Loss is of frames: none may stand for many.
        _command("ip", "-n", where, "link", "set", "dev", name, "gso_max_segs", "1", "up")


def _shapers(link: Link, *, netem: bool) -> list[list[str]]:
    """What tc is told, after the device, for one end of a link."""
    if not netem:
        return [["root", *_token_bucket(link)]]
    delay = ["delay", f"{link.round_trip_ms / 2}ms", "loss", f"{link.loss:%}", "limit", str(_NETEM_FRAMES)]
    return [["root", "handle", "1:", "netem", *delay], ["parent", "1:1", "handle", "10:", *_token_bucket(link)]]


def _token_bucket(link: Link) -> list[str]:
    queue_bytes = int(link.rate_mbit * 1e6 / 8 * _QUEUE_SECONDS)
    return ["tbf", "rate", f"{link.rate_mbit}mbit", "burst", str(_BURST_BYTES), "limit", str(queue_bytes)]


def _tune(namespace: str) -> None:
    for name, value in _SYSCTLS.items():
        try:
            _command("ip", "netns", "exec", namespace, "tee", _sysctl(name), written=value)
        except Unavailable:
            if name not in _OPTIONAL:
                raise


def _sysctl(name: str) -> str:
    return f"/proc/sys/net/ipv4/{name}"


def _command(*argv: str, written: str = "") -> str:
    """What it printed.

    Raises:
        Unavailable: it failed.
    """
    done = subprocess.run(argv, input=written, capture_output=True, text=True, check=False)  # noqa: S603 ip and tc
    if done.returncode:
        raise Unavailable(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")
    return done.stdout
