import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from contracts.errors import Conflict, InvalidSettings, NotFound, Unavailable
from runtime.settings import Settings
from tests.unit.weights.examples import POLICY, bf16_policy, edge, publish, publish_chain, same, stepped
from weights.codec.delta import encode
from weights.stores.bucket import BucketObjects, BucketTimeouts, open_bucket
from weights.stores.deadline import AnswerDeadline
from weights.stores.folder import FolderObjects
from weights.stores.opening import open_weight_store
from weights.stores.store import WeightStore
from weights.tensors import Tensors
from weights.versions.manifest import Chunk, Manifest

SHORT = BucketTimeouts(connect=0.3, request=0.3, retries=1, retrying=0.3)
KEYS = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(objects: MemoryStore) -> WeightStore:
    return WeightStore(BucketObjects(objects, "memory"))


def names(objects: MemoryStore, folder: str) -> list[str]:
    return sorted(item["path"] for page in obstore.list(objects, f"{POLICY}/{folder}/") for item in page)


def test_chunks_without_a_manifest_are_invisible_and_a_damaged_one_is_sent_again(
    store: WeightStore, objects: MemoryStore
) -> None:
    weights = publish_chain(store, 2)
    (chunk,) = store.manifest(POLICY, 1).chunks
    obstore.delete(objects, f"{POLICY}/v000001/step.json")
    obstore.put(objects, f"{POLICY}/chunks/{chunk.blake3}", b"half")
    assert store.versions(POLICY) == [0]
    with pytest.raises(NotFound):
        store.manifest(POLICY, 1)
    publish(store, 1, weights[1], parent=0, base=weights[0])
    assert same(store.load(POLICY, 1), weights[1])


def test_who_loses_the_manifest_leaves_the_winners_chunks_alone(store: WeightStore, objects: MemoryStore) -> None:
    """All publishers write their chunks before the first writes its manifest."""
    base = bf16_policy()
    publish(store, 0, base)
    offers = [stepped(base, 0.5, seed=seed) for seed in range(4)]
    barrier = threading.Barrier(len(offers))

    class Slow(WeightStore):
        def _write_chunk(self, policy: str, chunk: Chunk, part: memoryview, written: list[str]) -> None:
            super()._write_chunk(policy, chunk, part, written)
            barrier.wait()

    outcomes: list[str] = []

    def offer(target: Tensors) -> None:
        try:
            publish(Slow(BucketObjects(objects, "memory")), 1, target, parent=0, base=base)
            outcomes.append("published")
        except Conflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=offer, args=(target,)) for target in offers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict"] * 3 + ["published"]
    assert names(objects, "v000001") == [f"{POLICY}/v000001/step.json"]
    assert sum(same(store.load(POLICY, 1), target) for target in offers) == 1


def test_chunks_that_are_there_are_not_sent_again_unless_they_might_be_pruned_just_now(objects: MemoryStore) -> None:
    now = time.time()
    store = WeightStore(BucketObjects(objects, "memory", clock=lambda: now))
    weights = publish_chain(store, 1)
    (first,) = store.chunks(POLICY)
    publish(store, 1, weights[0])
    assert store.chunks(POLICY) == [first]
    now += 3599.0
    publish(store, 2, weights[0])
    (again,) = store.chunks(POLICY)
    assert again.written_at > first.written_at


def test_a_store_that_forgets_what_it_confirmed_is_found_out(objects: MemoryStore) -> None:
    class Forgetful(WeightStore):
        def read_small(self, *_: object) -> None:
            return None

    with pytest.raises(Unavailable, match="did not keep version 0"):
        Forgetful(BucketObjects(objects, "memory")).publish(*offered())


def offered() -> tuple[Manifest, bytes]:
    encoded = encode(None, bf16_policy())
    return edge(0, None, target_root=encoded.target_root, chunks=encoded.chunks), encoded.payload


class Answering:
    """A server that gives every request the same answer."""

    def __init__(self, status: int, body: bytes) -> None:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.send_header("etag", '"1"')
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else body)

            do_GET = do_PUT = do_HEAD = answer  # noqa: N815 the library's names

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the library's names
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def __enter__(self) -> str:
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def store_at(endpoint: str) -> WeightStore:
    return WeightStore(open_bucket("s3://bucket/prefix", KEYS | {"AWS_ENDPOINT_URL": endpoint}, SHORT))


def xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()


def test_wrong_keys_and_a_missing_bucket_are_wrong_settings() -> None:
    with Answering(403, xml("SignatureDoesNotMatch")) as endpoint:
        with pytest.raises(InvalidSettings, match="AWS_SECRET_ACCESS_KEY"):
            store_at(endpoint).versions(POLICY)
        with pytest.raises(InvalidSettings, match="refuses these keys"):
            publish(store_at(endpoint), 0, bf16_policy())
        with pytest.raises(InvalidSettings, match="refuses these keys"):
            store_at(endpoint).chunk(POLICY, edge(1, 0).chunks[0])
    with Answering(404, xml("NoSuchBucket")) as endpoint:
        store = store_at(endpoint)
        for ask in (
            lambda: store.manifest(POLICY, 0),
            lambda: store.chunks(POLICY),
            lambda: publish(store, 0, bf16_policy()),
            store.check,
        ):
            with pytest.raises(InvalidSettings, match="create the bucket"):
                ask()


def test_a_store_that_overwrites_what_it_shall_leave_is_found_out() -> None:
    with Answering(200, b"") as endpoint, pytest.raises(InvalidSettings, match="If-None-Match"):
        store_at(endpoint).check()


def test_one_that_keeps_conditions_passes_the_check_twice(store: WeightStore) -> None:
    store.check()
    store.check()
    assert store.versions(POLICY) == []


@pytest.fixture(params=["refusing", "silent", "failing"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if request.param == "silent":
            server.listen()
        if request.param == "failing":
            with Answering(503, xml("SlowDown")) as address:
                yield address
            return
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
def test_a_store_that_is_away_is_named_and_nothing_hangs(endpoint: str) -> None:
    store = store_at(endpoint)
    for ask in (lambda: store.versions(POLICY), lambda: publish(store, 0, bf16_policy()), store.check):
        with pytest.raises(Unavailable) as away:
            ask()
        assert endpoint in away.value.message
        assert "AWS_ENDPOINT_URL" in away.value.message


@pytest.mark.parametrize("url", ["bucket/prefix", "s3://", "gs://bucket", ""])
def test_what_is_no_url_of_a_bucket_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match="weights_url"):
        open_bucket(url, KEYS)


def test_settings_choose(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, run="r", policy="p", base="b", tasks=(Path("t"),), weights_unsigned=True)
    assert isinstance(open_weight_store(settings).objects, FolderObjects)
    shared = settings.model_copy(update={"weights_url": "s3://bucket/prefix"})
    assert isinstance(open_weight_store(shared).objects, BucketObjects)
    for url in ("http://host/weights", "ftp://host/weights"):
        with pytest.raises(InvalidSettings, match="s3://"):
            open_weight_store(settings.model_copy(update={"weights_url": url}))


def test_bytes_earn_time_and_silence_does_not() -> None:
    now = [0.0]
    deadline = AnswerDeadline(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with deadline.request():
        assert deadline.seconds_left() == 10.0
        now[0] = 9.0
        deadline.count(1)
        assert 1.0 < deadline.seconds_left() < 1.02
        now[0] = 10.5
        assert deadline.seconds_left() < 0
        deadline.count(1000)
        assert deadline.seconds_left() > 9.0


def test_one_byte_at_a_time_does_not_go_on_without_end() -> None:
    now = [0.0]
    deadline = AnswerDeadline(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with deadline.request():
        num_reads = 0
        while deadline.seconds_left() > 0:
            now[0] += 1.0
            deadline.count(1)
            num_reads += 1
    assert num_reads == 11


def test_what_came_is_worth_asking_for_the_rest_only_at_the_rate() -> None:
    now = [0.0]
    deadline = AnswerDeadline(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with deadline.request():
        now[0] = 5.0
        assert [deadline.is_fast_enough(399), deadline.is_fast_enough(400)] == [False, True]


def test_outside_of_a_request_there_is_no_deadline() -> None:
    now = [0.0]
    deadline = AnswerDeadline(grace=10.0, least_rate=100.0, clock=lambda: now[0])
    with deadline.request():
        pass
    now[0] = 1000.0
    assert deadline.seconds_left() == 10.0
