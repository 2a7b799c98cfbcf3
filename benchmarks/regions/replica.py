"""One replica of a region, as `millrace replica --follow` is one, that looks at the pointer when it is told to.

usage: python -m benchmarks.regions.replica --socket PATH --name NAME --store URL --folder DIR

In: lines on a socket, each the name of a policy: look at its pointer, and follow. Out: a line of JSON for each, `RegionReport`.
Waits for: the socket, and the regional cache at URL. It ends with the socket.
"""

from __future__ import annotations

import argparse
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from commands.replica import bring_pointed
from contracts.assignments import LIVE
from contracts.errors import Unavailable
from contracts.faults import no_fault
from weights.replica.replica import Replica
from weights.replica.slots import Slots
from weights.stores.store import WeightStore
from weights.stores.web import WebObjects
from weights.versions.keys import trusted_keys
from weights.versions.pointer import PointerReader
from weights.versions.signing import Keyring
from weights.warm_up import warm_up

_ASKED, _FETCHED, _SERVED = "fetch: before a chunk", "slot: begun", "flip: after current"
_CHUNKS_AT_ONCE = 8
_LOOKS = 3


class RegionReport(msgspec.Struct, kw_only=True):
    """What came of one look. Times are of the machine's monotonic clock, which all namespaces share; bytes are of bodies."""

    name: str
    failures: list[str] = []
    """Of looks that found the store away; as `--follow` does, it looked again."""
    serves: int | None = None
    root: str = ""
    asked_at: float = 0.0
    """Pointer and manifests had come, the first chunk was asked for."""
    fetched_at: float = 0.0
    """Every chunk was here, its hash checked."""
    served_at: float = 0.0
    num_swaps: int = 0
    chunks: list[str] = []
    """Paths of the chunks that were asked for."""
    chunk_bytes: int = 0
    text_bytes: int = 0
    """Manifests and the pointer."""


class CountingObjects(WebObjects):
    """Counts what comes into a report."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.report = RegionReport(name="")

    def get(self, path: str, most: int) -> bytes | None:
        """See `Objects.get`."""
        content = super().get(path, most)
        self.report.text_bytes += len(content or b"")
        return content

    def get_range(self, path: str, start: int, end: int) -> bytes | None:
        """See `Objects.get_range`."""
        content = super().get_range(path, start, end)
        self.report.chunks.append(path)
        self.report.chunk_bytes += len(content or b"")
        return content


class RegionFollower:
    """A replica of one policy, and the counts of its last look."""

    def __init__(self, name: str, url: str, folder: Path, policy: str, keyring: Keyring) -> None:
        self._name = name
        self._web = CountingObjects(url)
        reader = WeightStore(
            self._web, keyring, lambda: [slot.version for slot in Slots(folder, policy, no_fault).held()]
        )
        self._replica = Replica(folder, reader, policy, connections=_CHUNKS_AT_ONCE, fault=self._note)
        self._pointer = PointerReader(reader, policy, LIVE, keyring, folder / "pointer.json")

    def look(self) -> RegionReport:
        """Follow the pointer; failures are reported, and what was served still is.

        Raises:
            MillraceError: one that another look does not mend.
        """
        report = self._web.report = RegionReport(name=self._name)
        for _ in range(_LOOKS):
            try:
                bring_pointed(self._replica, self._pointer)
                break
            except Unavailable as error:
                report.failures.append(f"{error.code}: {error.message}")
        if (held := self._replica.held) is not None:
            report.serves, report.root = held.version, held.root
        return report

    def _note(self, place: str) -> None:
        if place == _ASKED:
            self._web.report.asked_at = self._web.report.asked_at or time.monotonic()
        if place == _FETCHED:
            self._web.report.fetched_at = time.monotonic()
        if place == _SERVED:
            self._web.report.served_at = time.monotonic()
            self._web.report.num_swaps += 1


def main(arguments: Sequence[str]) -> None:
    """Follow until the socket ends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regions.replica")
    parser.add_argument("--socket", required=True, help="where the benchmark listens")
    parser.add_argument("--name", required=True)
    parser.add_argument("--store", required=True, help="the regional cache, http://HOST:PORT")
    parser.add_argument("--folder", type=Path, required=True, help="with the publisher's key in keys/trusted")
    options = parser.parse_args(arguments)
    keyring = Keyring(trusted_keys(options.folder))
    followers: dict[str, RegionFollower] = {}
    warm_up()
    with socket.socket(socket.AF_UNIX) as opened:
        opened.connect(options.socket)
        with opened.makefile("rwb") as lines:
            lines.write(options.name.encode() + b"\n")
            lines.flush()
            for line in lines:
                policy = line.decode().strip()
                if policy not in followers:
                    folder = options.folder / policy
                    folder.mkdir()
                    followers[policy] = RegionFollower(options.name, options.store, folder, policy, keyring)
                lines.write(msgspec.json.encode(followers[policy].look()) + b"\n")
                lines.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
