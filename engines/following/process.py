"""A process that follows servers: a thread per server, their rows every second and at each change, and versions as plain files for all of them.

In: versions that were assigned. Out: servers on these versions, rows. Waits for: servers, the weight store and the disk. A version is fetched,
verified and decoded once; each server keeps a link to the file it was given, so a later version does not take it away.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
import structlog

from contracts.assignments import MOVED
from contracts.engines import EngineReplica
from contracts.errors import Unavailable, WeightsRefused
from contracts.faults import no_fault
from engines.following.driver import EngineDriver, ServerFacts, VersionFile
from engines.following.follower import ManagedServer, ServerFollower
from engines.following.repository import FollowingRepository
from runtime.base_policy import fingerprint
from runtime.engine_key import authorization, engine_key
from runtime.engine_rows import EngineRows
from runtime.listening import told_to_drain
from runtime.operations import WeightStoreMetrics, step_done, trouble
from runtime.settings import Settings
from weights.probe import ProbeAnswers, read_probe
from weights.replica.replica import Replica
from weights.replica.slots import Slots
from weights.stores.opening import open_weight_store
from weights.versions.keys import keyring_of
from weights.warm_up import warm_up

_ANNOUNCE_SECONDS, _LOOK_SECONDS = 1.0, 0.1
_POLL_SECONDS = 0.25
_CALL_SECONDS = 300.0
_END_SECONDS = 3.0
_log = structlog.get_logger(__name__)


FollowerType = TypeVar("FollowerType", bound=ServerFollower[Any])


class HostCopy:
    """Published versions on this host. `replica`: of the policy, on this host's disk. `run`: whose versions are taken."""

    def __init__(self, replica: Replica, run: str | None) -> None:
        self._replica, self._run, self._lock = replica, run, threading.Lock()

    def file_of(self, version: int, root: str | None, run: str | None, folder: Path) -> VersionFile:
        """The file of a version, linked into `folder`, where only it and the one before are kept.

        Raises WeightsRefused: `wrong_root`: the store has other weights than were assigned; or as `Replica.bring`; NotFound, Unavailable:
        as `Replica.bring`.
        """
        with self._lock:
            slot = self._replica.bring(version, run or self._run)
            if root is not None and slot.root != root:
                found = f"version {version} in the store has the root {slot.root}, but {root} was assigned"
                raise WeightsRefused("wrong_root", f"{found}: see who else writes to this store", version=version)
            path = folder / f"v{version:06d}-{slot.root[:12]}.safetensors"
            if not path.exists():
                os.link(self._replica.model, path)
        os.utime(path)
        for old in sorted(folder.glob("v*.safetensors"), key=lambda found: found.stat().st_mtime)[:-2]:
            old.unlink()
        return VersionFile(version, slot.root, path)

    def close(self) -> None:
        """Release the folder for another process."""
        self._replica.close()


class Host(NamedTuple):
    """What the servers of this host share."""

    settings: Settings
    folder: Path
    copy: HostCopy
    repository: FollowingRepository
    rows: EngineRows
    base_root: Callable[[], str]
    """Reads the root of version 0 in the store."""
    probe_of: Callable[[str], ProbeAnswers | None]
    """Reads what the trainer said with the version of a root: see `read_probe`."""

    @classmethod
    def of(cls, settings: Settings, name: str, weights: str | None = None) -> Host:
        """A host whose process has this name. `weights`: where versions are read, if not in the home's store."""
        warm_up()
        folder, database, policy = settings.home / name, settings.database(), settings.policy

        def held() -> set[int]:
            return {slot.version for slot in Slots(folder / "replica", policy, no_fault).held()}

        store = open_weight_store(settings, measures=WeightStoreMetrics(), read_from=weights, held=held)
        copy = HostCopy(Replica(folder / "replica", store, policy), settings.run)
        repository, rows = FollowingRepository(database, policy), EngineRows(database, policy)
        keyring = keyring_of(settings)
        return cls(
            settings, folder, copy, repository, rows, lambda: store.manifest(policy, 0).target_root,
            lambda root: read_probe(store, policy, root, keyring),
        )  # fmt: skip

    def follower(
        self,
        make: Callable[..., FollowerType],
        kind: str,
        slots: Sequence[str],
        *,
        name: str,
        region: str,
        server: ManagedServer,
        drive: Callable[[httpx.Client], EngineDriver],
        check: Callable[[ServerFacts, str], None],
    ) -> FollowerType:
        """A follower of one server. `make` takes what `ServerFollower` does; `drive` makes a driver from a client with the server's URL and key."""
        settings, key = self.settings, engine_key(self.settings.home)
        row = EngineReplica(
            name=name, policy=settings.policy, url="", kind=kind, region=region, status="starting", slots=dict.fromkeys(slots),
            abilities=frozenset(), instance="", engine=kind, dtype="", seen_at=0.0, run=settings.run,
            base=fingerprint(settings.base),
        )  # fmt: skip

        def connect(url: str) -> EngineDriver:
            # vLLM resets a connection on which it answered 500, so none is used again.
            limits = httpx.Limits(max_keepalive_connections=0)
            return drive(httpx.Client(base_url=url, headers=authorization(key), timeout=_CALL_SECONDS, limits=limits))

        own = self.folder / name
        own.mkdir(parents=True, exist_ok=True)
        return make(
            row, server=server, connect=connect, check=check, file_of=self.copy.file_of, folder=own,
            keep_swap=self.repository.keep_swap, assigned=self.repository.assigned,
        )  # fmt: skip


def follow(host: Host, followers: Sequence[ServerFollower[Any]], stop: threading.Event) -> None:
    """Follow until `stop` is set; then end the servers.

    Raises NameTaken: another replica has the name of one of these; Unavailable: a thread died.
    """
    awake = [threading.Event() for _ in followers]
    bell = host.settings.replica_links().bell

    def wake() -> None:
        for event in awake:
            event.set()

    bell.listen(MOVED, wake)
    threads = [
        threading.Thread(target=_steps, args=(follower, event, stop), name=follower.row.name, daemon=True)
        for follower, event in zip(followers, awake, strict=True)
    ]
    for thread in threads:
        thread.start()
    _announce(host, followers, threads, stop)
    died = not stop.is_set()
    stop.set()
    bell.close()
    wake()
    for follower, thread in zip(followers, threads, strict=True):
        _try(lambda: host.rows.withdraw(follower.row.name))  # noqa: B023 called at once
        thread.join(_END_SECONDS)
    if not died:
        with ThreadPoolExecutor() as ending:  # each takes seconds, and a supervisor does not wait long
            list(ending.map(lambda follower: follower.server.end(), followers))
    host.copy.close()
    if died:
        raise Unavailable("a thread that follows a server ended; see the log")


def _announce(
    host: Host, followers: Sequence[ServerFollower[Any]], threads: Sequence[threading.Thread], stop: threading.Event
) -> None:
    """Write the rows until `stop` is set or a thread ended."""
    told: list[EngineReplica] = []
    due, draining = 0.0, told_to_drain()
    while not stop.wait(_LOOK_SECONDS) and all(thread.is_alive() for thread in threads):
        rows, now = [follower.row for follower in followers], time.monotonic()
        waits = [f"{row.name} is {row.status}" for row in rows if row.status != "serving"]
        trouble("servers", ", ".join(waits) or None)
        if draining.is_set():
            rows = [row._replace(status="ending") for row in rows]
        if rows == told and now < due:
            continue
        told, due = rows, now + _ANNOUNCE_SECONDS  # what changed is announced at once
        for follower, row in zip(followers, rows, strict=True):
            follower.server.renew()
            if row.url:
                _try(lambda: host.rows.announce(row))  # noqa: B023 called at once
        step_done()


def _steps(follower: ServerFollower[Any], awake: threading.Event, stop: threading.Event) -> None:
    while not stop.is_set():
        follower.step(time.monotonic())
        awake.wait(_POLL_SECONDS)
        awake.clear()


def _try(do: Callable[[], None]) -> None:
    try:
        do()
    except Unavailable as error:
        _log.warning("row_not_written", error=error.message)
