import json
from pathlib import Path
from typing import Any

import pytest

from tests.each_case import each_case
from tests.worlds.regions.origin import Egress, RegionOrigin, part_of

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
