import json
import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.regions.__main__ import goals, idle_seconds, main, times_bound
from benchmarks.regions.versions import CYCLE, LARGE, RegionTrainer, walk_of
from benchmarks.regions.world import sent_by
from tests.each_case import each_case
from tests.worlds.regions.net import Link
from tests.worlds.regions.origin import Egress, RegionOrigin, part_of
from weights.publish import ANCHOR_EVERY
from weights.stores.opening import open_store_at
from weights.versions.pointer import PointerReader

DIGEST = "ab" * 32


@pytest.fixture
def origin(tmp_path: Path) -> RegionOrigin:
    (tmp_path / "policy" / "chunks").mkdir(parents=True)
    (tmp_path / "policy" / "chunks" / DIGEST).write_bytes(b"0123456789")
    (tmp_path / "policy" / "live.json").write_bytes(b"{}")
    return RegionOrigin(tmp_path)


@each_case(
    ("wanted", "part"),
    [
        ("bytes=0-4", (0, 5)),
        ("bytes=4-99", (4, 10)),
        ("bytes=9-9", (9, 10)),
        ("bytes=10-12", (10, 10)),
        ("bytes=5-2", (10, 10)),
        ("", None),
        ("bytes=-5", None),
        ("rows=1-2", None),
    ],
)
def test_which_part_a_range_asks_for(wanted: str, part: tuple[int, int] | None) -> None:
    assert part_of(wanted, 10) == part


def test_chunks_are_served_in_parts_and_counted(origin: RegionOrigin) -> None:
    path = f"policy/chunks/{DIGEST}"
    assert origin.reply(path, {"range": "bytes=2-4"}) == (206, {"content-range": "bytes 2-4/10"}, b"234")
    assert origin.reply(path, {"range": "bytes=10-19"}) == (416, {"content-range": "bytes */10"}, b"")
    assert origin.reply(path, {}) == (200, {}, b"0123456789")
    assert origin.egress == Egress(num_requests=3, text_bytes=0, chunks={DIGEST: 13})
    assert origin.egress.chunk_bytes_since(Egress(chunks={DIGEST: 3})) == 10


def test_texts_are_sent_once_to_who_knows_their_tag(origin: RegionOrigin) -> None:
    status, fields, body = origin.reply("policy/live.json", {})
    assert (status, body) == (200, b"{}")
    assert origin.reply("policy/live.json", {"if-none-match": fields["etag"]})[::2] == (304, b"")
    assert (origin.egress.text_bytes, origin.egress.num_requests) == (2, 2)
    assert json.loads(origin.reply("_stats", {}).body) == {"num_requests": 2, "text_bytes": 2, "chunks": {}}


@pytest.mark.parametrize("path", ["policy/chunks", "policy/chunks/none", "../../etc/passwd", ""])
def test_what_is_no_file_of_the_store_is_not_there(origin: RegionOrigin, path: str) -> None:
    assert origin.reply(path, {}).status == 404


async def test_an_answer_has_its_length(origin: RegionOrigin) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    scope = {"path": f"/policy/chunks/{DIGEST}", "headers": [(b"range", b"bytes=0-2")]}
    await origin(scope, receive, send)
    assert (sent[0]["status"], dict(sent[0]["headers"])[b"content-length"], sent[1]["body"]) == (206, b"3", b"012")


@pytest.mark.slow
def test_a_cycle_has_an_anchor_and_a_fold_to_its_last_version(tmp_path: Path) -> None:
    trainer = RegionTrainer(tmp_path / "store")
    *edges, fold = trainer.publish_cycle(walk_of(8, 28), 0.02, held=25)
    assert [edge.kind for edge in edges] == ["full"] + ["step"] * 27
    assert (fold.kind, fold.base_version, fold.version) == ("fold", 25, 27)
    assert [len(trainer.store.edges(CYCLE, version)) for version in (24, ANCHOR_EVERY, 26, 27)] == [1, 2, 1, 2]
    assert all(0.01 < edge.density < 0.03 for edge in edges[1:])


def test_a_large_payload_is_as_long_as_asked_for_and_new_in_every_version(tmp_path: Path) -> None:
    trainer = RegionTrainer(tmp_path / "store")
    edges = trainer.publish_large(1, 3)
    assert [edge.kind for edge in edges] == ["full", "step", "step"]
    assert all(1_000_000 <= edge.payload_bytes < 1_001_000 for edge in edges)
    assert len({chunk for edge in edges for chunk in edge.chunks}) == 3
    trainer.point(LARGE, 1)
    trainer.point(LARGE, 2)
    pointer = PointerReader(open_store_at(tmp_path / "store"), LARGE, "live", None, tmp_path / "seen").look()
    assert pointer is not None
    assert (pointer.version, pointer.epoch) == (2, 2)


def test_the_last_region_counts_by_its_own_link() -> None:
    links = {"near": Link(50.0), "far": Link(150.0, rate_mbit=50.0)}
    assert times_bound({"near": 2.0, "far": 3.0}, links, 12_500_000) == pytest.approx(2.0)


def test_what_a_device_sent_is_read_from_what_ip_says() -> None:
    devices = [
        {"ifname": name, "stats64": {"tx": {"bytes": sent}}} for name, sent in (("lo", 7), ("to0", 5), ("to1", 6))
    ]
    assert sent_by(json.dumps(devices)) == 11


def test_idle_time_is_read_from_what_the_kernel_says() -> None:
    ticks = 3 * os.sysconf("SC_CLK_TCK")
    assert idle_seconds(f"cpu  10 0 20 {ticks} 5 0 7 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n") == 3.0


def figures(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "replicas_per_region": 3,
        "large": {
            "last_region_times_bound": {"median": 1.1},
            "last_region_verified_times_bound": {"median": 1.15},
            "egress_times_regions_and_delta": [1.0, 1.0],
            "egress_times_regions_and_delta_one_replica": 1.0,
        },
        "away": {"versions": 10, "only_the_fold_was_fetched": True, "swaps": 1},
        "cycle": {"share_of_full_per_step": 0.007, "steps": 25, "density": 0.02, "full_copies_fetched": 0},
    }
    for name, change in changes.items():
        found[name] |= change
    return found


def test_all_goals_are_met() -> None:
    assert all(goal.is_met for goal in goals(figures()))


@each_case(
    ("changes", "missed"),
    [
        ({"large": {"last_region_times_bound": {"median": 1.201}}}, 0),
        ({"large": {"last_region_verified_times_bound": {"median": 1.3}}}, 1),
        ({"large": {"egress_times_regions_and_delta_one_replica": 0.999}}, 2),
        ({"large": {"egress_times_regions_and_delta": [1.0, 1.5]}}, 2),
        ({"away": {"only_the_fold_was_fetched": False}}, 3),
        ({"away": {"swaps": 10}}, 3),
        ({"cycle": {"share_of_full_per_step": 0.0121}}, 4),
        ({"cycle": {"full_copies_fetched": 1}}, 5),
    ],
)
def test_each_goal_can_be_missed(changes: dict[str, Any], missed: int) -> None:
    rows = goals(figures(**changes))
    assert [number for number, goal in enumerate(rows) if not goal.is_met] == [missed]


def test_without_root_it_is_skipped_and_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], "run this as root") == 0
    assert capsys.readouterr().out == "skipped: run this as root\n"
    assert main(["--json"], "run this as root") == 0
    assert json.loads(capsys.readouterr().out) == {"skipped": "run this as root"}
