"""The process `vllm`: one server per slot, each with a thread that follows its assignment; one decoder for all of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import structlog

from contracts.assignments import MOVED
from contracts.engines import EngineReplica
from contracts.errors import InvalidSettings, Unavailable
from runtime.base_policy import fingerprint
from runtime.engine_key import authorization, engine_key
from runtime.engine_rows import EngineRows
from runtime.operations import step_done
from runtime.settings import Settings, load_section, load_settings
from runtime.weight_metrics import WeightStoreMetrics
from services.vllm.command import has_experts, make_plug_in, serve_command, serve_environment
from services.vllm.follower import SlotFollower, abilities
from services.vllm.host_copy import HostCopy
from services.vllm.repository import VllmRepository
from services.vllm.server import GivenServer, ServerProcess
from services.vllm.settings import VllmSettings
from weights.engines.vllm import VllmServer
from weights.replica.replica import Replica
from weights.stores.opening import open_weight_store
from weights.warm_up import warm_up

_ANNOUNCE_SECONDS = 1.0
_POLL_SECONDS = 0.25
_CALL_SECONDS = 300.0
_END_SECONDS = 3.0
_log = structlog.get_logger(__name__)


class _Host(NamedTuple):
    """What the servers of this host share."""

    settings: Settings
    own: VllmSettings
    folder: Path
    copy: HostCopy
    repository: VllmRepository
    rows: EngineRows


def main(home: Path, stop: threading.Event) -> None:
    """Follow until `stop` is set; then end the servers.

    Raises:
        InvalidSettings: the interpreter does not exist, or a setting is missing.
        NameTaken: another replica has the name of one of these.
    """
    settings, own = load_settings(home), load_section(home, "vllm", VllmSettings)
    if own.python is not None and not os.access(own.python, os.X_OK):
        raise InvalidSettings(f"[vllm] python: {own.python} is no interpreter; `make vllm` makes .vllm/bin/python")
    warm_up()
    folder = settings.home / "vllm"
    store = open_weight_store(settings, measures=WeightStoreMetrics())
    copy = HostCopy(Replica(folder / "replica", store, settings.policy), settings.run)
    database, policy = settings.database(), settings.policy
    host = _Host(settings, own, folder, copy, VllmRepository(database, policy), EngineRows(database, policy))
    followers = [_follower(host, number) for number in range(len(own.slots))]
    awake = [threading.Event() for _ in followers]
    bell = settings.replica_links().bell

    def wake() -> None:
        for event in awake:
            event.set()

    bell.listen(MOVED, wake)
    threads = [
        threading.Thread(target=_follow, args=(follower, event, stop), name=follower.row.name, daemon=True)
        for follower, event in zip(followers, awake, strict=True)
    ]
    for thread in threads:
        thread.start()
    while not stop.wait(_ANNOUNCE_SECONDS) and all(thread.is_alive() for thread in threads):
        _announce(host, followers)
        step_done()
    died = not stop.is_set()
    stop.set()
    bell.close()
    wake()
    for follower, thread in zip(followers, threads, strict=True):
        _try(lambda: host.rows.withdraw(follower.row.name))  # noqa: B023 called at once
        thread.join(_END_SECONDS)
        if not died:
            follower.server.end()
    copy.close()
    if died:
        raise Unavailable("a thread that follows a vLLM server ended; see the log")


def _follower(host: _Host, number: int) -> SlotFollower:
    settings, own = host.settings, host.own
    slot, base, is_cpu = own.slots[number], Path(settings.base), settings.device == "cpu"
    name = f"{own.name}-{number + 1}"
    key, folder, plug_in = engine_key(settings.home), host.folder / name, make_plug_in(host.folder / "plug_in")
    folder.mkdir(parents=True, exist_ok=True)
    server = (
        GivenServer(own.urls[number])
        if own.urls
        else ServerProcess(
            folder,
            lambda port: serve_command(own, settings.policy, base, port=port, is_cpu=is_cpu),
            lambda lease: serve_environment(os.environ, plug_in, lease, key, own),
        )
    )
    row = EngineReplica(
        name=name,
        policy=settings.policy,
        url="",
        kind="vllm",
        region=own.region,
        status="starting",
        slots={slot: None},
        abilities=abilities(has_experts=has_experts(base)),
        instance="",
        engine="vllm",
        dtype=own.dtype or ("float32" if is_cpu else "bfloat16"),
        seen_at=0.0,
        run=settings.run,
        base=fingerprint(settings.base),
    )

    def connect(url: str) -> VllmServer:
        # vLLM resets a connection on which it answered 500, so none is used again.
        limits = httpx.Limits(max_keepalive_connections=0)
        return VllmServer(httpx.Client(base_url=url, headers=authorization(key), timeout=_CALL_SECONDS, limits=limits))

    return SlotFollower(
        row,
        server=server,
        connect=connect,
        files=host.copy,
        folder=folder,
        swaps=host.repository,
        assigned=host.repository.assigned,
    )


def _follow(follower: SlotFollower, awake: threading.Event, stop: threading.Event) -> None:
    while not stop.is_set():
        follower.step(time.monotonic())
        awake.wait(_POLL_SECONDS)
        awake.clear()


def _announce(host: _Host, followers: list[SlotFollower]) -> None:
    for follower in followers:
        follower.server.renew()
        if follower.row.url:
            _try(lambda: host.rows.announce(follower.row))  # noqa: B023 called at once


def _try(do: Callable[[], None]) -> None:
    try:
        do()
    except Unavailable as error:
        _log.warning("vllm_row_not_written", error=error.message)
