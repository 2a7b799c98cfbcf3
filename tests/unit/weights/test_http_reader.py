import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from commands.replica import Sources, _teller, run_replica
from contracts.errors import InvalidSettings, MillraceError, NotFound, Unavailable, Unsupported
from tests.unit.weights.examples import POLICY, bf16_policy, fold, publish, publish_chain, same, stepped
from weights.replica.replica import Replica
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.stores.web import WebObjects, WebTimeouts
from weights.tensors import read_safetensors
from weights.versions.keys import trusted_folder
from weights.versions.manifest import CHUNK_BYTES, Chunk
from weights.versions.pointer import Pointer, move_pointer, pointer_path
from weights.versions.signing import Keyring, Signer, public_pem

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


class Answer(NamedTuple):
    """What the server says; of `body` it sends the first `sent` bytes, then closes."""

    status: int
    fields: dict[str, str]
    body: bytes
    sent: int | None = None


class Site:
    """A folder behind a web server that notes what it is asked for, and can answer otherwise."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        self.answer: Callable[[str, str | None], Answer] = self.honest
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, part = self.path.removeprefix("/weights/"), self.headers.get("range")
                site.asked.append(f"{path} {part}" if part else path)
                answer = site.answer(path, part)
                self.send_response(answer.status)
                for name, value in ({"content-length": str(len(answer.body))} | answer.fields).items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(ConnectionError):  # whoever asked has heard enough
                    self.wfile.write(answer.body[: answer.sent])

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the library's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self.url = f"http://127.0.0.1:{self._server.server_port}/weights"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def honest(self, path: str, part: str | None) -> Answer:
        file = self.root / path
        if not file.is_file():
            return Answer(404, {}, b"no such file")
        body = file.read_bytes()
        if part is None or (found := _RANGE.fullmatch(part)) is None:
            return Answer(200, {"etag": f'"{len(body)}"'}, body)
        start, end = int(found[1]), min(int(found[2]) + 1, len(body))
        if start >= len(body):
            return Answer(416, {"content-range": f"bytes */{len(body)}"}, b"")
        return Answer(206, {"content-range": f"bytes {start}-{end - 1}/{len(body)}"}, body[start:end])

    def chunks_asked(self) -> list[str]:
        return [ask for ask in self.asked if "/chunks/" in ask]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "store") as site:
        yield site


@pytest.fixture
def folder(site: Site) -> Iterator[WebObjects]:
    with closing(WebObjects(site.url, WebTimeouts(connect=5.0, silence=5.0))) as folder:
        yield folder


def first_chunk(site: Site) -> Chunk:
    """The only one of version 0."""
    (chunk,) = open_store_at(site.root).manifest(POLICY, 0).chunks
    return chunk


def test_a_replica_follows_a_chain_and_fetches_each_chunk_once(site: Site, folder: WebObjects, tmp_path: Path) -> None:
    weights = publish_chain(open_store_at(site.root), 5)
    with Replica(tmp_path / "replica", WeightStore(folder), POLICY) as replica:
        for version in range(5):
            replica.bring(version)
            assert same(replica.tensors(), weights[version])
    assert len(site.chunks_asked()) == len(set(site.chunks_asked())) == 5


def test_who_says_what_he_holds_takes_one_fold(site: Site, folder: WebObjects, tmp_path: Path) -> None:
    store = open_store_at(site.root)
    weights = publish_chain(store, 6)
    fold(store, weights, 1, 5)
    swaps: list[str] = []
    with Replica(tmp_path / "replica", WeightStore(folder, held=lambda: [1]), POLICY, fault=swaps.append) as replica:
        replica.bring(1)
        site.asked.clear()
        swaps.clear()
        replica.bring(5)
        assert same(replica.tensors(), weights[5])
    (chunk,) = next(edge.chunks for edge in store.edges(POLICY, 5) if edge.kind == "fold")
    assert [chunk.blake3 in ask for ask in site.chunks_asked()] == [True]
    assert swaps.count("flip: before current") == 1


def test_who_holds_nothing_is_told_of_no_fold(site: Site, folder: WebObjects) -> None:
    store = open_store_at(site.root)
    fold(store, publish_chain(store, 4), 1, 3)
    assert [edge.kind for edge in WeightStore(folder).edges(POLICY, 3)] == ["step"]
    assert [edge.kind for edge in WeightStore(folder, held=lambda: [0, 1, 3, 9]).edges(POLICY, 3)] == ["step", "fold"]


def test_readers_load_what_was_published(site: Site, folder: WebObjects) -> None:
    store = open_store_at(site.root)
    weights = publish_chain(store, 3)
    reader = WeightStore(folder)
    assert same(reader.load(POLICY, 2), weights[2])
    assert reader.manifest(POLICY, 2) == store.manifest(POLICY, 2)


def test_an_answer_that_breaks_off_is_taken_up_where_it_broke(site: Site, folder: WebObjects, tmp_path: Path) -> None:
    weights = publish_chain(open_store_at(site.root), 1)
    digest, num_bytes = first_chunk(site).blake3, first_chunk(site).num_bytes

    def breaking(path: str, part: str | None) -> Answer:
        return site.honest(path, part)._replace(sent=1000 if "/chunks/" in path else None)

    site.answer = breaking
    with Replica(tmp_path / "replica", WeightStore(folder), POLICY) as replica:
        replica.bring(0)
        assert same(replica.tensors(), weights[0])
    starts = range(0, num_bytes, 1000)
    assert site.chunks_asked() == [f"{POLICY}/chunks/{digest} bytes={start}-{num_bytes - 1}" for start in starts]
    assert same(WeightStore(folder).load(POLICY, 0), weights[0])


def test_a_part_that_lies_there_already_is_not_asked_for_again(site: Site, folder: WebObjects, tmp_path: Path) -> None:
    weights = publish_chain(open_store_at(site.root), 1)
    chunk = first_chunk(site)
    replica_folder = tmp_path / "replica"
    (replica_folder / "chunks").mkdir(parents=True)
    there = (site.root / POLICY / "chunks" / chunk.blake3).read_bytes()[:700]
    (replica_folder / "chunks" / f"{chunk.blake3}.part").write_bytes(there)
    with Replica(replica_folder, WeightStore(folder), POLICY) as replica:
        replica.bring(0)
        assert same(replica.tensors(), weights[0])
    assert site.chunks_asked() == [f"{POLICY}/chunks/{chunk.blake3} bytes=700-{chunk.num_bytes - 1}"]


@pytest.mark.parametrize("start", [0, 1, 500])
def test_a_server_without_ranges_is_borne(site: Site, folder: WebObjects, start: int) -> None:
    publish_chain(open_store_at(site.root), 1)
    site.answer = lambda path, _: site.honest(path, None)
    chunk = first_chunk(site)
    content = (site.root / POLICY / "chunks" / chunk.blake3).read_bytes()
    assert WeightStore(folder).chunk(POLICY, chunk, start) == content[start:]
    site.answer = lambda path, _: site.honest(path, None)._replace(sent=start)
    if start:
        with pytest.raises(Unavailable):
            WeightStore(folder).chunk(POLICY, chunk, start)


def test_no_more_than_the_chunk_is_taken(site: Site, folder: WebObjects) -> None:
    publish_chain(open_store_at(site.root), 1)
    chunk = first_chunk(site)
    endless = bytes(4 * CHUNK_BYTES)
    site.answer = lambda _, __: Answer(200, {}, endless)
    assert len(WeightStore(folder).chunk(POLICY, chunk)) == chunk.num_bytes
    assert WeightStore(folder).chunk(POLICY, chunk, chunk.num_bytes) == b""


def bit_flipped(answer: Answer) -> Answer:
    return answer._replace(body=answer.body[:-1] + bytes([answer.body[-1] ^ 1]))


def elsewhere(answer: Answer) -> Answer:
    return answer._replace(fields={"content-range": f"bytes 1-{len(answer.body)}/{len(answer.body) + 1}"})


LIES: dict[str, tuple[Callable[[Answer], Answer], str]] = {
    "other bytes": (bit_flipped, "payload_hash"),
    "too short a file": (lambda answer: answer._replace(body=answer.body[:-9]), "payload_hash"),
    "nothing": (lambda answer: answer._replace(body=b""), "payload_hash"),
    "another part": (elsewhere, "wrong_range"),
    "a part without a place": (lambda answer: answer._replace(fields={}), "wrong_range"),
    "an error": (lambda _: Answer(500, {}, b"upstream changed it"), "unavailable"),
    "too many requests": (lambda _: Answer(429, {}, b""), "unavailable"),
    "a broken answer": (lambda answer: answer._replace(sent=0), "unavailable"),
    "no permission": (lambda _: Answer(403, {}, b"AccessDenied"), "invalid_settings"),
    "another address": (lambda _: Answer(301, {"location": "http://127.0.0.1:1/"}, b""), "invalid_settings"),
    "it is gone": (lambda _: Answer(404, {}, b""), "not_found"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_server_that_lies_about_a_chunk_is_refused_by_name(
    site: Site, folder: WebObjects, tmp_path: Path, lie: str
) -> None:
    weights = publish_chain(open_store_at(site.root), 2)
    change, code = LIES[lie]
    with Replica(tmp_path / "replica", WeightStore(folder), POLICY) as replica:
        replica.bring(0)
        honest = site.honest

        def lying(path: str, part: str | None) -> Answer:
            answer = honest(path, part)
            return change(answer) if "/chunks/" in path and answer.status == 206 else answer

        site.answer = lying
        with pytest.raises(MillraceError) as refused:
            replica.bring(1)
        assert refused.value.code == code
        assert replica.serves == 0
        site.answer = honest
        replica.bring(1)
        assert same(replica.tensors(), weights[1])


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (Answer(200, {}, b"<html>welcome</html>"), "corrupt_manifest"),
        (Answer(200, {}, b""), "corrupt_manifest"),
        (Answer(503, {}, b""), "unavailable"),
        (Answer(200, {}, b"{}", sent=1), "unavailable"),
        (Answer(200, {}, bytes(64 * 2**20 + 1)), "too_long"),
        (Answer(403, {}, b""), "invalid_settings"),
    ],
)
def test_what_is_no_manifest_is_refused_by_name(site: Site, folder: WebObjects, answer: Answer, code: str) -> None:
    site.answer = lambda path, _: answer if path.endswith("step.json") else Answer(404, {}, b"")
    with pytest.raises(MillraceError) as refused:
        WeightStore(folder).edges(POLICY, 1)
    assert refused.value.code == code


def test_what_the_server_said_is_passed_on(site: Site, folder: WebObjects) -> None:
    site.answer = lambda _, __: Answer(500, {}, b"upstream serves no parts")
    with pytest.raises(Unavailable, match=r"answers 500 about .*step\.json \(upstream serves no parts\)"):
        WeightStore(folder).edges(POLICY, 1)


def test_a_missing_version_is_named_and_versions_are_not_listed(site: Site, folder: WebObjects) -> None:
    publish_chain(open_store_at(site.root), 1)
    for ask in (WeightStore(folder).edges, WeightStore(folder).manifest, WeightStore(folder).load):
        with pytest.raises(NotFound, match="no version 7"):
            ask(POLICY, 7)
    with pytest.raises(Unsupported, match="by its number"):
        WeightStore(folder).versions(POLICY)


@pytest.mark.parametrize("listens", [True, False])
def test_a_server_that_is_away_is_named_and_nothing_hangs(listens: bool) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        url = f"http://somebody:secret@127.0.0.1:{server.getsockname()[1]}/weights"
        with closing(WebObjects(url, WebTimeouts(connect=0.1, silence=0.1))) as folder:
            with pytest.raises(Unavailable, match=r"http://127.0.0.1:\d+/weights does not answer") as away:
                WeightStore(folder).chunk(POLICY, Chunk("0" * 64, 10))
            assert "secret" not in away.value.message


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "http://", "https:///x", "http://host/?list", "http://host:port/", "x"]
)
def test_what_is_no_address_of_a_web_server_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match="web server"):
        WebObjects(url)


def test_pointers_are_read_and_not_moved(site: Site, folder: WebObjects) -> None:
    mirror, path = WeightStore(folder), pointer_path(POLICY, "live")
    assert mirror.read_small(path, 1000) is None
    pointer = Pointer(policy=POLICY, run="run-1", arm="live", version=3, epoch=1)
    move_pointer(open_store_at(site.root), pointer, None, None)
    assert mirror.read_small(path, 1000) == (site.root / path).read_bytes()
    with pytest.raises(InvalidSettings, match="read only"):
        move_pointer(mirror, pointer, None, None)


def test_nothing_can_be_written_through_a_web_server(site: Site, folder: WebObjects) -> None:
    publish_chain(open_store_at(site.root), 1)
    mirror = WeightStore(folder)
    for write in (
        lambda: publish(mirror, 0, bf16_policy()),
        lambda: mirror.write_small("x", b"{}"),
        lambda: mirror.remove_chunks(POLICY, [first_chunk(site).name], 1e12),
        mirror.check,
    ):
        with pytest.raises(InvalidSettings, match="read only"):
            write()


def test_the_command_reads_a_web_server_and_takes_a_fold_from_what_lies_in_its_folder(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signer = Signer(Ed25519PrivateKey.from_private_bytes(bytes(32)))
    keyring = Keyring({signer.key_id: signer.public_key})
    replica_folder = tmp_path / "replica"
    trusted_folder(replica_folder).mkdir(parents=True)
    (trusted_folder(replica_folder) / f"{signer.key_id}.pub").write_bytes(public_pem(signer.public_key))
    store, weights = open_store_at(site.root, keyring), [bf16_policy()]
    publish(store, 0, weights[0], signer=signer)
    for version in range(1, 4):
        weights.append(stepped(weights[-1], 0.03, seed=version))
        publish(store, version, weights[-1], parent=version - 1, base=weights[-2], signer=signer)
    pointer = Pointer(policy=POLICY, run="run-1", arm="live", version=3, epoch=1)
    move_pointer(open_store_at(site.root), pointer, signer, keyring)
    looks: list[tuple[int | None, int]] = [(0, 0), (None, 3)]  # None: what the pointer names
    for wanted, expected in looks:
        run_replica(
            policy=POLICY, store=site.url, folder=replica_folder, version=wanted, follow=False, every=0.0, unsigned=False
        )  # fmt: skip
        said, path = capsys.readouterr().out.strip().split(" at ")
        assert said == f"version {expected}"
        assert same(read_safetensors(Path(path)), weights[expected])
    assert f"{POLICY}/v000003/fold-000000.json" in site.asked


def test_that_nobody_is_told_is_said_once(
    site: Site, folder: WebObjects, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish_chain(open_store_at(site.root), 1)
    reader = WeightStore(folder)
    tell = _teller(Sources([reader]), POLICY, "somebody", None)
    assert capsys.readouterr().out.startswith("not announced: ")
    with Replica(tmp_path / "replica", reader, POLICY) as replica:
        replica.bring(0)
        assert [tell(replica, "version 0") for _ in range(2)] == ["version 0"] * 2
    assert capsys.readouterr().out == ""
    assert not (site.root / POLICY / "replicas").exists()
