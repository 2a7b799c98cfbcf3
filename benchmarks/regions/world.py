"""What runs in `benchmarks.regions`: the trainer's web server, a cache in every region, and replicas behind it.

In: "look at your pointer", for some replicas. Out: their reports, and what went over the links. Waits for: the replicas,
which are told over sockets of the file system, for this process is in none of the namespaces.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from benchmarks.regions.replica import RegionReport
from benchmarks.regions.versions import RegionTrainer
from contracts.errors import Unavailable
from services.cache.fetch import Stats
from tests.worlds.regions.net import NetPlace, Network, Region
from tests.worlds.regions.origin import Egress
from weights.versions.layout import chunk_path
from weights.versions.manifest import Manifest

_ORIGIN_PORT, _CACHE_PORT = 8000, 8001
_DEPTH = 2
"""Less than usual: a payload is many chunks at once, and what a slow connection was asked for, no other takes over."""
_NICE = -10
"""Of the trainer's server and the caches, as of the wire: each would have a machine of its own."""
_START_SECONDS, _LOOK_SECONDS = 120.0, 180.0
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
_ASK = """
import sys, time, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
deadline = time.monotonic() + float(sys.argv[2])
while True:
    try:
        sys.stdout.write(opener.open(sys.argv[1], timeout=10).read().decode())
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.1)
"""


class RegionsWorld:
    """See `running`.

    Args:
        net: where.
        folder: for everything on disk.
        trainer: whose versions are served.
    """

    def __init__(self, net: Network, folder: Path, trainer: RegionTrainer) -> None:
        self._net = net
        self._folder = folder
        self._trainer = trainer
        self._lines: dict[str, BinaryIO] = {}
        self.replicas: dict[str, list[str]] = {region.name: [] for region in net.regions}
        """Names by region."""

    def start(self, num_replicas: int, connections: int, stack: ExitStack) -> None:
        """Everything; `connections` is of a cache to the trainer, for each chunk.

        Raises:
            Unavailable: something did not start.
        """
        root = self._trainer.root
        self._run(
            self._net.trainer,
            "tests.worlds.regions.origin",
            "--root",
            str(root),
            "--port",
            str(_ORIGIN_PORT),
            niceness=_NICE,
        )
        path = self._folder / "replicas.socket"
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(_START_SECONDS)
        for region in self._net.regions:
            self._start_region(region, num_replicas, connections, path)
        for _ in range(num_replicas * len(self._net.regions)):
            try:
                accepted = stack.enter_context(listener.accept()[0])
            except TimeoutError as error:
                raise Unavailable("a replica did not start: see what it wrote above") from error
            accepted.settimeout(_LOOK_SECONDS)
            lines = cast("BinaryIO", stack.enter_context(accepted.makefile("rwb")))
            self._lines[lines.readline().decode().strip()] = lines
        for region in self._net.regions:
            self.cache_stats(region)
        self.egress()

    def tell(self, names: Iterable[str], policy: str) -> float:
        """Have these replicas look at the pointer; when, on the monotonic clock."""
        told_at = time.monotonic()
        for name in names:
            self._lines[name].write(policy.encode() + b"\n")
            self._lines[name].flush()
        return told_at

    def hear(self, names: Iterable[str]) -> list[RegionReport]:
        """What came of it.

        Raises:
            Unavailable: a replica died or hangs.
        """
        reports = []
        for name in names:
            try:
                line = self._lines[name].readline()
            except TimeoutError as error:
                raise Unavailable(f"replica {name} says nothing since {_LOOK_SECONDS:.0f} s") from error
            if not line:
                raise Unavailable(f"replica {name} died: see what it wrote above")
            reports.append(msgspec.json.decode(line, type=RegionReport))
        return reports

    def egress(self) -> Egress:
        """Bodies that the trainer's server sent."""
        return msgspec.json.decode(self._ask(self._net.trainer, f"http://127.0.0.1:{_ORIGIN_PORT}"), type=Egress)

    def cache_stats(self, region: Region) -> Stats:
        """What a region's cache counts."""
        return msgspec.json.decode(self._ask(region, f"http://127.0.0.1:{_CACHE_PORT}"), type=Stats)

    def arrived_at(self, region: Region, edge: Manifest) -> float:
        """When the last chunk of a payload lay in the region's cache, in epoch seconds."""
        folder = self._folder / region.name / "cache"
        # A chunk gets its name when it is whole, which is the last change of its inode.
        return max((folder / chunk_path(edge.policy, chunk.name)).stat().st_ctime for chunk in edge.chunks)

    def sent_bytes(self) -> int:
        """What left the trainer's devices, frames with their headers, those sent again too."""
        return sent_by(self._output(self._net.trainer, ["ip", "-s", "-j", "link", "show"]))

    def _start_region(self, region: Region, num_replicas: int, connections: int, path: Path) -> None:
        upstream = f"http://{region.trainer_address}:{_ORIGIN_PORT}"
        folder = self._folder / region.name
        folder.mkdir()
        self._run(
            region,
            "millrace",
            *("cache", "--upstream", upstream, "--folder", str(folder / "cache"), "--port", str(_CACHE_PORT)),
            *("--connections", str(connections), "--depth", str(_DEPTH)),
            niceness=_NICE,
        )
        for number in range(num_replicas):
            name = f"{region.name}-{number}"
            self._trainer.trust(folder / name)
            self._run(
                region,
                "benchmarks.regions.replica",
                *("--socket", str(path), "--name", name, "--folder", str(folder / name)),
                *("--store", f"http://127.0.0.1:{_CACHE_PORT}"),
            )
            self.replicas[region.name].append(name)

    def _run(self, place: NetPlace, module: str, *arguments: str, niceness: int = 0) -> None:
        argv = ["nice", "-n", str(niceness), sys.executable, "-m", module, *arguments]
        self._net.run_in(place, argv, stdout=subprocess.DEVNULL, environment=_ONE_THREAD | {"NO_PROXY": "*"})

    def _ask(self, place: NetPlace, url: str) -> bytes:
        return self._output(place, [sys.executable, "-c", _ASK, f"{url}/_stats", str(_START_SECONDS)])

    def _output(self, place: NetPlace, argv: Sequence[str]) -> bytes:
        process = self._net.run_in(place, argv, stdout=subprocess.PIPE)
        output, _ = process.communicate()
        if process.returncode:
            raise Unavailable(f"`{argv[0]}` failed in {place.namespace}: see what it wrote above")
        return bytes(output)


def sent_by(links: bytes | str) -> int:
    """The bytes sent over all devices but the loopback, read from the output of `ip -s -j link`."""
    devices: list[dict[str, Any]] = json.loads(links)
    return sum(device["stats64"]["tx"]["bytes"] for device in devices if device["ifname"] != "lo")


@contextmanager
def running(
    net: Network, folder: Path, trainer: RegionTrainer, num_replicas: int, connections: int
) -> Iterator[RegionsWorld]:
    """A world in which everything has started; replicas end with it, the rest with the network."""
    with ExitStack() as stack:
        world = RegionsWorld(net, folder, trainer)
        world.start(num_replicas, connections, stack)
        yield world
