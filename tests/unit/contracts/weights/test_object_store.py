import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import numpy as np
import obstore
import pytest
from obstore.store import MemoryStore

from contracts.errors import InvalidSettings, NotFound, Unavailable, WeightsRefused
from contracts.settings import Settings
from contracts.weights.object_store import ObjectWeightStore, Patience, open_objects
from contracts.weights.store import FolderWeightStore, open_weight_store
from tests.unit.contracts.weights.examples import bf16_policy, publish, publish_chain, same, stepped, tensor_of

POLICY = "reservations"
FOLDER = f"{POLICY}/v000001"
SHORT = Patience(connect=0.3, request=0.3, retries=1, retrying=0.3)
KEYS = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def store(objects: MemoryStore) -> ObjectWeightStore:
    return ObjectWeightStore(objects, "memory")


def names(objects: MemoryStore) -> list[str]:
    return sorted(item["path"] for page in obstore.list(objects, f"{FOLDER}/") for item in page)


def test_a_payload_without_a_manifest_is_invisible_and_is_sent_again(
    store: ObjectWeightStore, objects: MemoryStore
) -> None:
    weights = publish_chain(store, 2)
    manifest, payload = names(objects)
    obstore.delete(objects, manifest)
    obstore.put(objects, payload, b"half")
    assert store.versions(POLICY) == [0]
    with pytest.raises(NotFound):
        store.payload(POLICY, 1)
    publish(store, 1, weights[1], parent=0, base=weights[0])
    assert names(objects) == [manifest, payload]
    assert same(store.load(POLICY, 1), weights[1])


def test_who_loses_the_manifest_leaves_the_winners_payload_alone(
    store: ObjectWeightStore, objects: MemoryStore
) -> None:
    weights = publish_chain(store, 1)
    offers = [stepped(weights[0], 0.5, seed=seed) for seed in range(5)]
    barrier = threading.Barrier(len(offers))
    errors: list[str] = []

    def offer(number: int) -> None:
        barrier.wait()
        try:
            publish(store, 1, offers[number], parent=0, base=weights[0])
        except Exception as error:  # noqa: BLE001 whatever it was, it is compared
            errors.append(type(error).__name__)

    threads = [threading.Thread(target=offer, args=(number,)) for number in range(len(offers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == ["Conflict"] * 4
    assert names(objects) == [
        f"{FOLDER}/manifest.json",
        f"{FOLDER}/payload-{store.manifest(POLICY, 1).payload_blake3}.bin",
    ]
    assert sum(same(store.load(POLICY, 1), target) for target in offers) == 1


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda it: it[:-1] + b"\xff", "payload_hash"),
        (lambda it: it + b"!", "payload_size"),
        (lambda _: b"", "payload_size"),
    ],
)
def test_damage_is_named(
    store: ObjectWeightStore, objects: MemoryStore, damage: Callable[[bytes], bytes], code: str
) -> None:
    publish_chain(store, 2)
    path = names(objects)[1]
    obstore.put(objects, path, damage(bytes(obstore.get(objects, path).bytes())))
    with pytest.raises(WeightsRefused) as refused:
        store.load(POLICY, 1)
    assert refused.value.code == code


def test_a_manifest_in_the_wrong_place_is_refused(store: ObjectWeightStore, objects: MemoryStore) -> None:
    publish_chain(store, 1)
    moved = msgspec.structs.replace(store.manifest(POLICY, 0), version=7)
    obstore.put(objects, f"{POLICY}/v000000/manifest.json", msgspec.json.encode(moved))
    with pytest.raises(WeightsRefused) as refused:
        store.manifest(POLICY, 0)
    assert refused.value.code == "corrupt_manifest"


def test_a_payload_of_several_parts_comes_back_whole(store: ObjectWeightStore) -> None:
    noise = np.random.default_rng(1).integers(0, 2**16, 18 * 2**20, dtype="<u2")
    publish(store, 0, {"w": tensor_of(noise)})
    assert store.manifest(POLICY, 0).payload_bytes > 2 * 16 * 2**20
    assert np.array_equal(store.load(POLICY, 0)["w"].data.view("<u2"), noise)


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
                self.wfile.write(body)

            do_GET = do_PUT = answer  # noqa: N815 the library's names

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


def store_at(endpoint: str) -> ObjectWeightStore:
    return open_objects("s3://bucket/prefix", KEYS | {"AWS_ENDPOINT_URL": endpoint}, SHORT)


def xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()


def test_wrong_keys_and_a_missing_bucket_are_wrong_settings() -> None:
    with Answering(403, xml("SignatureDoesNotMatch")) as endpoint:
        with pytest.raises(InvalidSettings, match="AWS_SECRET_ACCESS_KEY"):
            store_at(endpoint).versions(POLICY)
        with pytest.raises(InvalidSettings, match="refuses these keys"):
            publish(store_at(endpoint), 0, bf16_policy())
    with Answering(404, xml("NoSuchBucket")) as endpoint:
        for ask in (lambda: store_at(endpoint).manifest(POLICY, 0), store_at(endpoint).check):
            with pytest.raises(InvalidSettings, match="create the bucket"):
                ask()


def test_a_store_that_overwrites_what_it_shall_leave_is_found_out() -> None:
    with Answering(200, b"") as endpoint, pytest.raises(InvalidSettings, match="If-None-Match"):
        store_at(endpoint).check()


def test_one_that_keeps_conditions_passes_the_check_twice(store: ObjectWeightStore) -> None:
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
        open_objects(url, KEYS)


def test_settings_choose(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, run="r", policy="p", base="b", tasks=(Path("t"),))
    assert isinstance(open_weight_store(settings), FolderWeightStore)
    shared = settings.model_copy(update={"weights_url": "s3://bucket/prefix"})
    assert isinstance(open_weight_store(shared), ObjectWeightStore)
