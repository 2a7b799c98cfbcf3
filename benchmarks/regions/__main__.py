"""One trainer, several regions far away: how late is the last one, and what does it cost the trainer?

usage: python -m benchmarks.regions [--regions 4] [--megabytes 60] [--replicas 3] [--json] [--quick]

In: numbers of regions and of replicas in each, over links of 100 Mbit/s, 50 to 150 ms, 1% loss (`tests.worlds.regions.net`:
network namespaces; without root it prints that and exits with 0). Out: a table and a dated JSON file, or with --json one object.
Waits for: replicas, which follow a signed pointer through a cache of their region and verify all they apply.

There are two policies, because a delta of 60 MB at 2% would need 4 B weights. `cycle` is small and changes as a real policy does.
It gives the traffic of a live replica, the fold, and the check that all replicas end with the published bits. `large` has a
payload of the requested size, all weights new in every version. It gives the times and the trainer's egress. All replicas fetch
it in full first, as a warm-up: connections over a long lossy link take seconds to reach their rate.

The clock starts when replicas are told to look at the pointer; three round trips pass until the first byte of a payload
comes (pointer, manifests, chunks). A region is done when its cache has all chunks, and again when all its replicas have
them, hashes checked. When they serve depends on the disk that they share here, and is given beside. So do they share the
cores: where these are never idle, the machine is measured and not the links.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.regions.replica import RegionReport
from benchmarks.regions.versions import CYCLE, RegionTrainer, walk_of
from benchmarks.regions.world import RegionsWorld, running
from benchmarks.report import end_with, print_table, summarise
from contracts.errors import MillraceError, Unavailable
from tests.worlds.regions.net import Link, Network, network, spread_links, why_not
from weights.publish import ANCHOR_EVERY
from weights.versions.manifest import Manifest

DENSITY = 0.0206
"""Of the last step; then the mean over the cycle is 2%."""
AWAY = 10
_CPU_TIMES = Path("/proc/stat")
MOST_TIMES, MOST_SHARE = 1.2, 0.012
_ROUNDS = 3
_ROUND_TRIPS = 3
_TIMES = ("last_region_times_bound", "last_region_verified_times_bound", "last_region_serves_times_bound")
_MOMENTS = ("chunks_asked_seconds", "arrived_seconds", "verified_seconds", "serves_seconds")
_ROWS, _QUICK_ROWS = 512, 128
_QUICK_REGIONS, _QUICK_REPLICAS, _QUICK_MEGABYTES = 2, 2, 10


class RegionGoal(NamedTuple):
    """A row of the table."""

    name: str
    must: str
    reached: str
    is_met: bool


def main(arguments: Sequence[str], reason: str | None = None) -> int:
    """Measure what the command line asks for, unless there is a `reason` why not; the status."""
    options = _parse(arguments)
    if reason is not None:
        print(json.dumps({"skipped": reason}) if options.json else f"skipped: {reason}")
        return 0
    try:
        figures = measure(options)
    except MillraceError as error:
        print(f"regions: {error}", file=sys.stderr)
        return 1
    return end_with(figures, options, show, "regions")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures.

    Raises:
        Unavailable: something did not start, or a replica did not come to a version.
    """
    load = os.getloadavg()[0]
    links = spread_links(options.regions)
    with tempfile.TemporaryDirectory() as temporary, network(links) as net:
        folder = Path(temporary)
        trainer = RegionTrainer(folder / "store")
        _tell("publishing")
        *cycle, fold = trainer.publish_cycle(walk_of(options.rows, ANCHOR_EVERY + AWAY + 1), DENSITY, held=ANCHOR_EVERY)
        large = trainer.publish_large(options.megabytes, options.rounds + 2)
        _tell("starting")
        with running(net, folder, trainer, options.replicas, options.connections) as world:
            return {
                "regions": [vars(link) for link in links],
                "replicas_per_region": options.replicas,
                "megabytes": options.megabytes,
                "quick": options.quick,
                "congestion_control": net.congestion_control,
                "shaping": net.shaping,
                "connections_per_chunk": options.connections,
                "load_before": round(load, 1),
                "cycle": measure_cycle(world, trainer, cycle[: ANCHOR_EVERY + 1]),
                "away": measure_away(world, net, trainer, cycle[ANCHOR_EVERY + 1 :], fold),
                "large": measure_large(world, net, trainer, large),
            }


def measure_cycle(world: RegionsWorld, trainer: RegionTrainer, edges: Sequence[Manifest]) -> dict[str, Any]:
    """What a live replica fetches from the first version to the next full copy, which it is not to touch."""
    everybody = _everybody(world)
    _follow(world, trainer, everybody, edges[0])
    before, reports = world.egress(), []
    for edge in edges[1:]:
        reports += _follow(world, trainer, everybody, edge)
        _tell(f"cycle: version {edge.version}")
    egress = world.egress()
    full = {chunk.blake3 for chunk in _anchor(trainer, edges[-1]).chunks}
    per_replica = sum(report.chunk_bytes + report.text_bytes for report in reports) / len(everybody)
    num_steps, full_bytes = len(edges) - 1, edges[-1].full_bytes
    return {
        "failures": [f"{report.name}: {failure}" for report in reports for failure in report.failures],
        "steps": num_steps,
        "full_bytes": full_bytes,
        "density": sum(edge.density for edge in edges[1:]) / num_steps,
        "bytes_per_replica": per_replica,
        "share_of_full_per_step": per_replica / num_steps / full_bytes,
        "payload_share": sum(edge.payload_bytes for edge in edges[1:]) / num_steps / full_bytes,
        "full_copies_fetched": sum(path.rpartition("/")[2] in full for report in reports for path in report.chunks),
        "chunk_egress_per_region_and_payload": egress.chunk_bytes_since(before)
        / len(world.replicas)
        / sum(edge.payload_bytes for edge in edges[1:]),
        "text_egress_bytes": egress.text_bytes - before.text_bytes,
    }


def measure_away(
    world: RegionsWorld, net: Network, trainer: RegionTrainer, edges: Sequence[Manifest], fold: Manifest
) -> dict[str, Any]:
    """A region whose link is cut while the others get version after version."""
    away = net.regions[-1]
    absent = world.replicas[away.name]
    others = [name for name in _everybody(world) if name not in absent]
    net.cut(away)
    _tell("away: a region is cut off")
    world.tell(absent, CYCLE)
    for edge in edges:
        _follow(world, trainer, others, edge)
    said = world.hear(absent)
    net.mend(away)
    before = world.cache_stats(away)
    told_at = world.tell(absent, CYCLE)
    reports = _checked(world.hear(absent), fold)
    digests = {chunk.blake3 for chunk in fold.chunks}
    payloads = [{path.rpartition("/")[2] for path in report.chunks} for report in reports]
    return {
        "region": away.name,
        "versions": len(edges),
        "while_away": sorted({failure for report in said for failure in report.failures}),
        "served_while_away": sorted({report.serves for report in said if report.serves is not None}),
        "only_the_fold_was_fetched": all(fetched == digests for fetched in payloads),
        "swaps": max(report.num_swaps for report in reports),
        "fold_bytes": fold.payload_bytes,
        "chain_bytes": sum(edge.payload_bytes for edge in edges),
        "bytes_over_the_link": world.cache_stats(away).upstream_bytes - before.upstream_bytes,
        "seconds": max(report.served_at for report in reports) - told_at,
    }


def measure_large(
    world: RegionsWorld, net: Network, trainer: RegionTrainer, edges: Sequence[Manifest]
) -> dict[str, Any]:
    """Version after version to all replicas, the last one to one replica of each region only."""
    everybody, few = _everybody(world), [names[0] for names in world.replicas.values()]
    _tell("large: warm-up, all replicas fetch a full copy")
    _follow(world, trainer, everybody, edges[0])
    rounds = []
    for number, edge in enumerate(edges[1:], start=1):
        names = few if number == len(edges) - 1 else everybody
        rounds.append(_timed_round(world, net, trainer, names, edge))
        _tell(f"large: {rounds[-1]['last_region_times_bound']:.3f} times bytes / bandwidth, {len(names)} replicas")
    *full, single = rounds
    link, num_bytes = net.regions[-1].link, edges[1].payload_bytes
    wire = summarise([one["sent_with_headers_and_repeats"] for one in full])["median"]
    return {
        "payload_bytes": num_bytes,
        "bound_seconds": link.seconds(num_bytes),
        "floor_times_bound": wire + _ROUND_TRIPS * link.round_trip_ms / 1000 / link.seconds(num_bytes),
        **{name: summarise([one[name] for one in full]) for name in _TIMES},
        "egress_times_regions_and_delta": [one["egress_times_regions_and_delta"] for one in full],
        "egress_times_regions_and_delta_one_replica": single["egress_times_regions_and_delta"],
        "rounds": rounds,
    }


def _timed_round(
    world: RegionsWorld, net: Network, trainer: RegionTrainer, names: Sequence[str], edge: Manifest
) -> dict[str, Any]:
    before, sent_before, idle_before = world.egress(), world.sent_bytes(), idle_seconds(_CPU_TIMES.read_text())
    trainer.point(edge.policy, edge.version)
    told_at, told_at_epoch = world.tell(names, edge.policy), time.time()
    reports = _checked(world.hear(names), edge)
    idle = idle_seconds(_CPU_TIMES.read_text()) - idle_before
    idle_share = idle / (time.monotonic() - told_at) / (os.cpu_count() or 1)
    egress, sent = world.egress(), world.sent_bytes()
    links = {region.name: region.link for region in net.regions}
    arrived = {region.name: world.arrived_at(region, edge) - told_at_epoch for region in net.regions}
    asked = _by_region(reports, [report.asked_at - told_at for report in reports])
    there = _by_region(reports, [report.fetched_at - told_at for report in reports])
    served = _by_region(reports, [report.served_at - told_at for report in reports])
    return {
        "replicas": len(names),
        "idle_share": idle_share,
        "failures": [f"{report.name}: {failure}" for report in reports for failure in report.failures],
        "regions": {
            name: {
                "chunks_asked_seconds": asked[name],
                "arrived_seconds": arrived[name],
                "verified_seconds": seconds,
                "serves_seconds": served[name],
            }
            for name, seconds in there.items()
        },
        "last_region_times_bound": times_bound(arrived, links, edge.payload_bytes),
        "last_region_verified_times_bound": times_bound(there, links, edge.payload_bytes),
        "last_region_serves_times_bound": times_bound(served, links, edge.payload_bytes),
        "chunk_egress_bytes": egress.chunk_bytes_since(before),
        "egress_times_regions_and_delta": egress.chunk_bytes_since(before) / (len(links) * edge.payload_bytes),
        "text_egress_bytes": egress.text_bytes - before.text_bytes,
        "sent_with_headers_and_repeats": (sent - sent_before) / (len(links) * edge.payload_bytes),
    }


def times_bound(seconds: dict[str, float], links: dict[str, Link], num_bytes: int) -> float:
    """How many times longer than at the plain rate of its link the last region took."""
    return max(seconds[name] / links[name].seconds(num_bytes) for name in seconds)


def idle_seconds(cpu_times: str) -> float:
    """What all cores together had nothing to do, of the text of /proc/stat."""
    return int(cpu_times.split()[4]) / os.sysconf("SC_CLK_TCK")


def goals(figures: dict[str, Any]) -> list[RegionGoal]:
    """What was to be reached, and whether it was."""
    large, away, cycle = figures["large"], figures["away"], figures["cycle"]
    arrived, verified = (large[name]["median"] for name in _TIMES[:2])
    share = cycle["share_of_full_per_step"]
    egress = {*large["egress_times_regions_and_delta"], large["egress_times_regions_and_delta_one_replica"]}
    num_replicas = figures["replicas_per_region"]
    return [
        RegionGoal(
            "last region's cache, times bytes / bandwidth", f"{MOST_TIMES}", f"{arrived:.3f}", arrived <= MOST_TIMES
        ),
        RegionGoal("its last replica, verified", f"{MOST_TIMES}", f"{verified:.3f}", verified <= MOST_TIMES),
        RegionGoal(
            f"trainer's egress, times regions x delta, {num_replicas} replicas a region and 1",
            "1 and 1",
            " and ".join(f"{value:.6f}" for value in sorted(egress)),
            egress == {1.0},
        ),
        RegionGoal(
            f"region cut off for {away['versions']} versions: payloads, swaps",
            "1 fold, 1",
            f"{'1 fold' if away['only_the_fold_was_fetched'] else 'others too'}, {away['swaps']}",
            away["only_the_fold_was_fetched"] and away["swaps"] == 1,
        ),
        RegionGoal(
            f"a live replica's traffic a step, of full size, {cycle['steps']} steps at {cycle['density']:.2%}",
            f"{MOST_SHARE:.1%}",
            f"{share:.3%}",
            share <= MOST_SHARE,
        ),
        RegionGoal(
            "full copies fetched by live replicas",
            "0",
            str(cycle["full_copies_fetched"]),
            not cycle["full_copies_fetched"],
        ),
    ]


def show(figures: dict[str, Any]) -> None:
    """For a person."""
    large, away = figures["large"], figures["away"]
    failures = [failure for one in (figures["cycle"], *large["rounds"]) for failure in one["failures"]]
    print(
        f"{len(figures['regions'])} regions of {figures['replicas_per_region']} replicas, "
        f"{', '.join('{rate_mbit:.0f} Mbit/s {round_trip_ms:.0f} ms {loss:.0%}'.format(**link) for link in figures['regions'])}; "
        f"{figures['shaping']}, {figures['congestion_control']}, load before {figures['load_before']}; one warm-up fetch"
    )
    if figures["quick"]:
        print("quick: so few bytes are mostly round trips; the first two rows say nothing")
    columns = ("of", "must", "reached", "")
    print_table("regions", columns, [(*goal[:3], "yes" if goal.is_met else "NO") for goal in goals(figures)])
    rows = [
        (number, one["replicas"], name, *(f"{at[moment]:.2f}" for moment in _MOMENTS), f"{one['idle_share']:.0%}")
        for number, one in enumerate(large["rounds"], start=1)
        for name, at in one["regions"].items()
    ]
    title = (
        f"{large['payload_bytes']:,} bytes, {large['bound_seconds']:.2f} s at the plain rate; with headers, repeats and "
        f"{_ROUND_TRIPS} round trips the last region cannot be below {large['floor_times_bound']:.3f} times that"
    )
    moments = ("version", "replicas", "region", "chunks asked, s", "in the cache", "verified", "serves", "cores idle")
    print_table(title, moments, rows)
    print(
        f"serving in the last region at {large['last_region_serves_times_bound']['median']:.2f} times the bound; over the wire "
        f"{large['rounds'][0]['sent_with_headers_and_repeats']:.3f} times the payload, headers and repeats included; the fold "
        f"has {away['fold_bytes'] / away['chain_bytes']:.0%} of its chain; while cut off: {'; '.join(away['while_away'])}"
    )
    print(f"looks that failed and were repeated, elsewhere: {'; '.join(failures) or 'none'}")


def _follow(world: RegionsWorld, trainer: RegionTrainer, names: Sequence[str], edge: Manifest) -> list[RegionReport]:
    trainer.point(edge.policy, edge.version)
    world.tell(names, edge.policy)
    return _checked(world.hear(names), edge)


def _checked(reports: list[RegionReport], edge: Manifest) -> list[RegionReport]:
    for report in reports:
        if (report.serves, report.root) != (edge.version, edge.target_root):
            why = "; ".join(report.failures) or "other weights"
            raise Unavailable(f"replica {report.name} serves version {report.serves}, not {edge.version}: {why}")
    return reports


def _anchor(trainer: RegionTrainer, edge: Manifest) -> Manifest:
    edges = trainer.store.edges(edge.policy, edge.version)
    return next(other for other in edges if other.kind == "full")


def _everybody(world: RegionsWorld) -> list[str]:
    return [name for names in world.replicas.values() for name in names]


def _by_region(reports: Iterable[RegionReport], seconds: Iterable[float]) -> dict[str, float]:
    """The last of each region."""
    last: dict[str, float] = {}
    for report, value in zip(reports, seconds, strict=True):
        region = report.name.rpartition("-")[0]
        last[region] = max(value, last.get(region, 0.0))
    return last


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.regions", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--regions", type=int, default=4)
    parser.add_argument("--megabytes", type=int, default=60, help="of a delta; less than 60 is mostly round trips")
    parser.add_argument("--replicas", type=int, default=3, help="in each region")
    parser.add_argument("--connections", type=int, default=16, help="of a cache to the trainer, for each chunk")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="versions that are timed")
    parser.add_argument("--json", action="store_true", help="print one object instead, and write no file")
    parser.add_argument("--quick", action="store_true", help="small and short; writes no file")
    options = parser.parse_args(arguments)
    options.rows = _ROWS
    if options.quick:
        options.regions, options.replicas, options.megabytes = _QUICK_REGIONS, _QUICK_REPLICAS, _QUICK_MEGABYTES
        options.rounds, options.rows = 1, _QUICK_ROWS
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], why_not()))
