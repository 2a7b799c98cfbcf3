"""Three engines in two regions: how late is the last one on a version, and what do a kill and a cut link cost?

usage: python -m benchmarks.regions [--megabytes 24] [--rate-mbit 20] [--round-trip-ms 20] [--loss 0] [--json] [--quick]

In: a policy of so many megabytes, all weights new in every version, and one link (`tests.worlds.regions.fleet`: network namespaces;
without root, PostgreSQL or nginx it prints that and exits with 0). Out: a table and a dated JSON file, or with --json one object. Waits for:
the rows of the engines, for each says by itself which version it serves.

The clock of a version starts when its assignment is committed, and stops when the last engine's row names it. The bound is the bytes of
its payload over the link's plain rate. The row itself crosses the link too.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from benchmarks.report import end_with, print_table
from commands.audit import audit
from contracts.engines import FRESH_SECONDS
from contracts.errors import MillraceError
from contracts.faults import no_fault
from contracts.ids import sample_key
from pipelines.training.versions.upkeep import Pruning, StoreUpkeep
from runtime.engine_rows import read_engines
from runtime.lease import Lease
from tests.worlds.paths import BASE
from tests.worlds.regions.fleet import FAR, POLICY, SELDOM_SECONDS, RegionFleet, fleet, inside, why_no_fleet
from tests.worlds.regions.load import RegionEndpoint, RegionLoad, open_loop
from tests.worlds.regions.net import Link, why_not
from tests.worlds.versions import moved, random_bf16
from weights.tensors import Tensors, read_safetensors, write_safetensors
from weights.versions.manifest import Manifest

MOST_TIMES = 1.2
RATE, SECONDS, KILL_AFTER = 50.0, 8.0, 3.0
AWAY_VERSIONS = 12
"""An hour at one version every five minutes."""
_DENSITY = 0.02
_SWAP_SECONDS, _BACK_SECONDS = 180.0, 120.0
_MEGA = 1e6
_MLP = ("gate_proj", "up_proj", "down_proj")


def make_policy(folder: Path, megabytes: float) -> Path:
    """The demo's policy with its MLP widened to so many megabytes; as it is if it has more."""
    shutil.copytree(BASE, folder)
    folder.chmod(0o755)
    config, tensors = json.loads((BASE / "config.json").read_text()), read_safetensors(BASE)
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    rest = sum(tensor.data.nbytes for tensor in tensors.values())
    more = int((megabytes * _MEGA - rest) / (2 * layers * len(_MLP) * hidden))
    if more > 0:
        wide, draws = config["intermediate_size"] + more, np.random.default_rng(0)
        for layer in range(layers):
            for name in _MLP:
                shape = (hidden, wide) if name == "down_proj" else (wide, hidden)
                tensors[f"model.layers.{layer}.mlp.{name}.weight"] = random_bf16(draws, shape)
        (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": wide}))
        (folder / "model.safetensors").unlink()
        write_safetensors(folder / "model.safetensors", tensors)
    return folder


def all_new(tensors: Tensors, seed: int) -> Tensors:
    """Other weights of the same shapes: a delta saves nothing."""
    draws = np.random.default_rng(seed)
    return {name: random_bf16(draws, tensor.shape) for name, tensor in tensors.items()}


def measure_version(world: RegionFleet, link: Link, seed: int) -> dict[str, Any]:
    """A version to all engines: when each says that it serves it, and what crossed the link."""
    edge = world.publish(all_new(world.tensors, seed))
    before = world.egress()
    world.assign(edge)
    told_at, told_epoch = time.monotonic(), time.time()
    at: dict[str, float] = {}

    def all_said() -> bool:
        for name, row in world.rows().items():
            if row.slots["live"] == edge.version:
                at.setdefault(name, time.monotonic() - told_at)
        return at.keys() == world.engines.keys()

    world.wait(all_said, f"not all engines came to v{edge.version}", _SWAP_SECONDS)
    sent = world.egress().chunk_bytes_since(before)
    seconds = link.seconds(edge.payload_bytes)
    return {
        "payload_bytes": edge.payload_bytes,
        "bound_seconds": seconds,
        "seconds": at,
        "in_the_cache_seconds": world.arrived_at(edge) - told_epoch,
        "swaps": world.swaps(edge.version, told_epoch),
        "last_times_bound": max(at.values()) / seconds,
        "chunk_bytes_over_the_link_times_payload": sent / edge.payload_bytes,
    }


def measure_kill(world: RegionFleet, victim: str = "near-1") -> tuple[dict[str, Any], RegionLoad]:
    """SIGKILL of an engine under load; then it is started again."""
    moved_before = _num_moved(world)

    def kill() -> None:
        world.engines[victim].send_signal(signal.SIGKILL)

    endpoint = RegionEndpoint(world.url, world.key, POLICY)
    load = inside(world.near, lambda: open_loop(endpoint, RATE, SECONDS, KILL_AFTER, kill))
    world.engines[victim].wait()
    figures = {
        "killed": victim,
        "requests": len(load.ended),
        "ends": dict(load.ends),
        "moved": _num_moved(world) - moved_before,
        "longest_seconds": load.longest_seconds,
    }
    lost = world.rows().get(victim)
    world.start_engine(victim)

    def is_back() -> bool:
        row = world.rows().get(victim)
        return row is not None and (lost is None or row.instance != lost.instance) and world.serve(world.newest)

    figures["back_seconds"] = world.wait(
        is_back,
        "the engine does not come back",
        _BACK_SECONDS,
    )
    return figures, load


def measure_cut(world: RegionFleet, num_versions: int = AWAY_VERSIONS) -> tuple[dict[str, Any], RegionLoad]:
    """The far region is cut off while versions are published; then the link is back."""
    far = [name for name in world.engines if world.homes[name].region == FAR]
    before = world.newest
    world.net.cut(world.far)
    cut_at = time.monotonic()
    world.wait(
        lambda: not any(name in world.rows() for name in far), "rows stay fresh", 3 * FRESH_SECONDS, SELDOM_SECONDS
    )
    lease = Lease.acquire(world.database, POLICY)
    pruning = Pruning(world.database, world.store, lease, no_fault, keep_anchors=2)
    upkeep = StoreUpkeep(
        world.store, lease, pruning, no_fault, signer=world.signer, replicas=lambda: None,
        engines=lambda: read_engines(world.database, POLICY),
    )  # fmt: skip
    edges: list[Manifest] = []
    for number in range(num_versions):
        edges.append(world.publish(moved(world.tensors, _DENSITY, number)))
        upkeep.after(edges[-1], world.tensors, time.time())
        world.assign(edges[-1])
    world.wait(lambda: world.serve(edges[-1].version, "near-1"), "near-1 stays behind", _SWAP_SECONDS)
    endpoint = RegionEndpoint(world.url, world.key, POLICY)
    load = inside(world.near, lambda: open_loop(endpoint, RATE / 5, SECONDS / 2))
    local = {name: world.ask_engine(name) for name in far}
    held = world.egress()
    cut_seconds = time.monotonic() - cut_at
    world.net.mend(world.far)
    back = world.wait(lambda: world.serve(edges[-1].version), "the far region stays behind", _BACK_SECONDS)
    fold = next(edge for edge in world.store.edges(POLICY, edges[-1].version) if edge.base_version == before)
    sent = world.egress()
    fetched = {name for name, count in sent.chunks.items() if count > held.chunks.get(name, 0)}
    figures = {
        "cut_seconds": cut_seconds,
        "versions": num_versions,
        "served_to_local_callers": local,
        "ends_elsewhere": dict(load.ends),
        "back_seconds": back,
        "only_the_fold_was_fetched": fetched == {chunk.blake3 for chunk in fold.chunks},
        "fold_bytes": fold.payload_bytes,
        "chain_bytes": sum(edge.payload_bytes for edge in edges),
        "chunk_bytes_over_the_link": sent.chunk_bytes_since(held),
    }
    return figures, load


def _num_moved(world: RegionFleet) -> int:
    """How many requests the endpoint has given to another engine so far, by its log."""
    return (world.folder / "inference.log").read_text().count("request moves to another engine")


def check_ledger(world: RegionFleet, ids: Sequence[str]) -> dict[str, Any]:
    """Whether every answer that a client saw has one state."""
    log = world.homes["web"].event_log()
    clients = [{"kind": "generation", "key": sample_key(completion_id, 0)} for completion_id in ids]
    try:
        world.wait(
            lambda: audit(world.database, log, clients).balanced,
            "the ledger is not balanced",
            _BACK_SECONDS,
            SELDOM_SECONDS,
        )
        found = audit(world.database, log, clients)
    finally:
        log.close()
    return {"answers": len(ids), "balanced": found.balanced, "problems": list(found.problems)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures. Raises Unavailable: something did not start, or did not come to a version."""
    load = os.getloadavg()[0]
    link = Link(options.round_trip_ms, options.rate_mbit, options.loss)
    with tempfile.TemporaryDirectory(prefix="millrace-policy-") as temporary:
        base = make_policy(Path(temporary) / "base", options.megabytes)
        with fleet(base, link) as world:
            versions = [measure_version(world, link, seed) for seed in range(1, options.versions + 1)]
            killed, first = measure_kill(world)
            cut, second = measure_cut(world, options.away)
            return {
                "link": vars(link),
                "shaping": world.net.shaping,
                "load_before": round(load, 1),
                "quick": options.quick,
                "versions": versions,
                "kill": killed,
                "cut": cut,
                "ledger": check_ledger(world, [*first.ids, *second.ids]),
            }


def show(figures: dict[str, Any]) -> None:
    """For a person."""
    versions, kill, cut, ledger = (figures[name] for name in ("versions", "kill", "cut", "ledger"))
    late = max(one["last_times_bound"] for one in versions)
    sent = {one["chunk_bytes_over_the_link_times_payload"] for one in versions}
    answered = {"answered": kill["requests"]}
    rows = [
        ("last engine on a version, times bytes / bandwidth", f"{MOST_TIMES}", f"{late:.3f}", late <= MOST_TIMES),
        ("bytes over the link, times the payload", "1", ", ".join(map(str, sorted(sent))), sent == {1.0}),
        (
            f"SIGKILL at {RATE:.0f}/s: {kill['moved']} requests moved",
            "all answered",
            str(kill["ends"]),
            kill["ends"] == answered,
        ),
        (
            f"cut off for {cut['versions']} versions",
            "1 fold",
            f"{cut['chunk_bytes_over_the_link']} B",
            cut["only_the_fold_was_fetched"],
        ),
        ("ledger", "balanced", f"{ledger['answers']} answers", ledger["balanced"]),
    ]
    print_table(
        "engines in two regions", ("of", "must", "reached", ""), [(*row[:3], "yes" if row[3] else "NO") for row in rows]
    )


def main(arguments: Sequence[str], reason: str | None = None) -> int:
    """Measure what the command line asks for, unless there is a `reason` why not; the status."""
    options = _parse(arguments)
    if reason is not None:
        print(json.dumps({"skipped": reason}) if options.json else f"skipped: {reason}")
        return 0
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        figures = measure(options)
    except MillraceError as error:
        print(f"regions: {error}", file=sys.stderr)
        return 1
    return end_with(figures, options, show, "regions-engines")


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regions", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--megabytes", type=float, default=24, help="of the policy, and of each version's payload")
    parser.add_argument("--rate-mbit", type=float, default=20)
    parser.add_argument("--round-trip-ms", type=float, default=20)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--versions", type=int, default=3, help="versions that are timed")
    parser.add_argument("--away", type=int, default=AWAY_VERSIONS, help="versions while a region is cut off")
    parser.add_argument("--json", action="store_true", help="print one object instead, and write no file")
    parser.add_argument("--quick", action="store_true", help="small and short; writes no file")
    options = parser.parse_args(arguments)
    if options.quick:
        options.megabytes, options.versions, options.away = 1.0, 1, 5
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], why_not() or why_no_fleet()))
