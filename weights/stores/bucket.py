"""Where versions live when several machines share them: a bucket. Waits for: the object store, each request bounded.

<prefix>/<policy>/chunks/e000007/<blake3>                       first: parts of payloads, named by the epoch of the
                                                                trainer that wrote them and by what they hold
<prefix>/<policy>/chunks/<blake3>                               the same of no trainer, or of before there were epochs
<prefix>/<policy>/v000012/step.json full.json fold-000004.json  second, only if there is none; a version exists from the
                                                                moment its primary edge does

A folder lets publishers take turns, a bucket cannot. But chunks have the name of what they hold, so whoever loses the
manifest has overwritten nothing that the winner names.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from contracts.errors import InvalidSettings, Unavailable, WeightsRefused
from weights.files import too_long
from weights.stores.store import StoredChunk, WeightStore
from weights.versions.layout import (
    EDGE,
    PRIMARIES,
    VERSION,
    Verifier,
    check_offer,
    chunk_folder,
    chunk_path,
    edge_name,
    edge_path,
    is_chunk,
    no_chunk,
    policy_folder,
    version_folder,
)
from weights.versions.manifest import Chunk, Manifest

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta, UpdateVersion
    from obstore.store import ObjectStore, S3Config

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_CONCURRENCY = 4
_PIECE_BYTES = 2**20
_RENEW_SECONDS = 1800.0
"""A chunk older than this is written again by who needs it again: one older than an hour may just be pruned."""
_PROBE = ".millrace-probe"
_INSTANCE_METADATA = "169.254.169.254"
_BEYOND = re.compile(r"status code: 416\b|Invalid range")
_REFUSED = re.compile(r"status code: 40[13]\b")


class Patience(NamedTuple):
    """How long one request may take, and how often it is repeated. Seconds.

    A chunk needs a rate of 8 MiB in `request`; a store that is gone is given up after about three seconds
    if it refuses, after `retrying` and one more request if it is silent.
    """

    connect: float = 5.0
    request: float = 60.0
    retries: int = 4
    retrying: float = 30.0


PATIENCE = Patience()


class ObjectWeightStore(WeightStore):
    """Versions in a bucket of any store that keeps `If-None-Match: *` and `If-Match` on a write.

    Args:
        objects: the bucket, or a part of it.
        place: what messages call it.
        keyring: see `WeightReader`.
        clock: UTC epoch seconds, about those of the store.
    """

    _connections = _CONCURRENCY

    def __init__(
        self,
        objects: ObjectStore,
        place: str,
        keyring: Verifier | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(keyring)
        self._clock = clock
        self.objects = objects
        self._place = place

    def publish(self, manifest: Manifest, payload: bytes) -> None:
        """See `WeightStore.publish`.

        Raises:
            Unavailable: the store is away; the edge stays invisible unless a manifest was stored that nobody
                could confirm: publishing again settles it.
            InvalidSettings: it refuses the keys, or there is no such bucket.
        """
        parts = check_offer(manifest, payload, self._keyring)
        if self._is_published(manifest):
            return
        self._check_free(manifest)
        text = msgspec.json.format(msgspec.json.encode(manifest))
        with self.failures_named():
            self._each(lambda part: self._write_chunk(manifest.policy, *part), parts)
            # One that was repeated because its answer was lost finds its own manifest: equal, so no conflict.
            with suppress(AlreadyExistsError, PreconditionError):
                obstore.put(self.objects, edge_path(manifest), text, mode=self._mode(manifest))
        # Whose manifest it is that is stored now decides.
        if not self._is_published(manifest):
            raise Unavailable(f"{self._place} did not keep version {manifest.version}: publish it again")

    def read_small(self, path: str, most: int) -> bytes | None:
        """See `WeightReader.read_small`; what the store says of the size is believed as little as what it sends."""
        try:
            with self.failures_named():
                found = obstore.get(self.objects, path)
                if found.meta["size"] > most:
                    raise too_long(path, most)
                return self._bounded(found, path, most)
        except FileNotFoundError:
            return None

    def write_small(self, path: str, text: bytes) -> None:
        """See `WeightStore.write_small`."""
        with self.failures_named():
            obstore.put(self.objects, path, text)

    def list_small(self, folder: str, most: int) -> list[str]:
        """See `WeightStore.list_small`."""
        items = islice(self._items(folder), most)
        return [item["path"].rpartition("/")[2] for item in items]

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """See `WeightReader.chunk`."""
        path = chunk_path(policy, chunk.name)
        if start >= chunk.num_bytes:
            return b""
        try:
            with self.failures_named():
                return self._range(path, start, chunk.num_bytes)
        except FileNotFoundError as error:
            raise no_chunk(policy, chunk) from error

    def chunks(self, policy: str) -> list[StoredChunk]:
        """See `WeightStore.chunks`."""
        found = ((item["path"].rpartition("/chunks/")[2], item) for item in self._list(chunk_folder(policy)))
        return [
            StoredChunk(name, item["size"], item["last_modified"].timestamp()) for name, item in found if is_chunk(name)
        ]

    def remove_chunks(self, policy: str, names: Iterable[str], before: float) -> list[str]:
        """See `WeightStore.remove_chunks`."""

        def remove(name: str) -> str | None:
            path = chunk_path(policy, name)
            with suppress(FileNotFoundError):
                # A last look: a publisher may have found since that it needs this one.
                if obstore.head(self.objects, path)["last_modified"].timestamp() < before:
                    obstore.delete(self.objects, path)
                    return name
            return None

        with self.failures_named():
            return [name for name in self._each(remove, names) if name is not None]

    def check(self) -> None:
        """See that the store takes writes and keeps conditions; leaves one empty object.

        Raises:
            InvalidSettings: the keys or the bucket are wrong, or it overwrites what it was told to leave.
            Unavailable: it is away.
        """
        with self.failures_named():
            try:
                for _ in range(2):
                    obstore.put(self.objects, _PROBE, b"", mode="create")
            except (AlreadyExistsError, PreconditionError):
                return
            except FileNotFoundError as error:
                raise self._no_bucket() from error
        raise InvalidSettings(
            f"{self._place} ignores `If-None-Match: *`: two trainers could publish one version; use a store that keeps it"
        )

    def _numbers(self, policy: str) -> list[int]:
        # Whatever begins with v comes after the chunks, which are many.
        places = (item["path"].split("/")[-2:] for item in self._items(policy_folder(policy), after="v"))
        names = (VERSION.fullmatch(folder) for folder, file in places if file in PRIMARIES)
        return sorted({int(name[1]) for name in names if name})

    def _names(self, policy: str, version: int) -> list[str]:
        items = self._items(version_folder(policy, version))
        return [name for item in items if EDGE.fullmatch(name := item["path"].rpartition("/")[2])]

    def _mode(self, manifest: Manifest) -> Literal["create"] | UpdateVersion:
        """How to write an edge: over what is not believed there, as long as it is still that; else only if nothing is."""
        try:
            tag = obstore.head(self.objects, edge_path(manifest))["e_tag"]
        except FileNotFoundError:
            return "create"
        # Judged after its tag was taken: what somebody else publishes meanwhile has another.
        edge = self._edge(manifest.policy, manifest.version, edge_name(manifest))
        return {"e_tag": tag} if isinstance(edge, WeightsRefused) else "create"

    def _contents(self, manifest: Manifest) -> Iterator[bytes]:
        with ThreadPoolExecutor(_CONCURRENCY) as pool:
            yield from pool.map(lambda chunk: self.chunk(manifest.policy, chunk), manifest.chunks)

    def _write_chunk(self, policy: str, chunk: Chunk, part: memoryview) -> None:
        path = chunk_path(policy, chunk.name)
        with suppress(FileNotFoundError):
            found = obstore.head(self.objects, path)
            age = self._clock() - found["last_modified"].timestamp()
            if found["size"] == chunk.num_bytes and age < _RENEW_SECONDS:
                return
        try:
            obstore.put(self.objects, path, part, use_multipart=False)
        except FileNotFoundError as error:
            raise self._no_bucket() from error

    def _range(self, path: str, start: int, end: int) -> bytes:
        """At most these bytes: whether there are as many is for whoever checks them."""
        try:
            found = obstore.get(self.objects, path, options={"range": (start, end)})
            return self._bounded(found, path, end - start)
        except BaseError as error:
            if _BEYOND.search(str(error)):
                return b""
            raise

    def _bounded(self, found: GetResult, path: str, most: int) -> bytes:
        """What comes, but no more than `most` bytes of it. Raises WeightsRefused: `too_long`."""
        content = bytearray()
        for piece in found.stream(min_chunk_size=_PIECE_BYTES):
            content += piece
            if len(content) > most:
                raise too_long(path, most)
        return bytes(content)

    def _list(self, folder: str) -> list[ObjectMeta]:
        return list(self._items(folder))

    def _items(self, folder: str, after: str = "") -> Iterator[ObjectMeta]:
        """What lies below a folder, page by page."""
        offset = f"{folder}/{after}" if after else None
        with self.failures_named():
            try:
                for page in obstore.list(self.objects, f"{folder}/", offset=offset, chunk_size=1000):
                    yield from page
            except FileNotFoundError as error:
                raise self._no_bucket() from error

    def _each(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        with ThreadPoolExecutor(_CONCURRENCY) as pool:
            return list(pool.map(work, items))

    def _no_bucket(self) -> InvalidSettings:
        return InvalidSettings(f"{self._place} does not exist: create the bucket, or correct weights_url")

    @contextmanager
    def failures_named(self) -> Iterator[None]:
        """Turn what the client says into what an operator can do. FileNotFoundError, and conditions not met, pass."""
        try:
            yield
        except (AlreadyExistsError, PreconditionError):
            raise
        except BaseError as error:
            raise self._named(error) from error

    def _named(self, error: BaseError) -> InvalidSettings | Unavailable:
        text = _first_line(error)
        if _INSTANCE_METADATA in text:  # where the client looks for the keys of a machine when it was given none
            return InvalidSettings(
                f"there are no keys for {self._place}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        # Of a listing the client only tells the answer's text.
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _REFUSED.search(text):
            return InvalidSettings(
                f"{self._place} refuses these keys ({text}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of "
                "somebody who may list, read and write there"
            )
        if "NoSuchBucket" in text:
            return self._no_bucket()
        return Unavailable(
            f"{self._place} does not answer ({text}): see that it runs and that AWS_ENDPOINT_URL and AWS_REGION are "
            "right; it is safe to try again"
        )


def open_objects(
    url: str,
    environment: Mapping[str, str] = os.environ,
    patience: Patience = PATIENCE,
    keyring: Verifier | None = None,
) -> ObjectWeightStore:
    """The store at `s3://bucket/prefix`; keys, endpoint and region are the AWS_* variables. Nothing is asked yet.

    Raises:
        InvalidSettings: it is no such URL, or a variable cannot be used.
    """
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise InvalidSettings(f"weights_url is s3://bucket/prefix, not {url!r}")
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    config = _config(environment)
    if endpoint:
        config["endpoint"] = endpoint
    try:
        objects = S3Store(
            parts.netloc,
            prefix=parts.path.strip("/") or None,
            config=config,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=patience.connect),
                "timeout": timedelta(seconds=patience.request),
            },
            retry_config={"max_retries": patience.retries, "retry_timeout": timedelta(seconds=patience.retrying)},
        )
    except (BaseError, ValueError) as error:
        raise InvalidSettings(f"the object store cannot be set up ({_first_line(error)}): check AWS_*") from error
    return ObjectWeightStore(objects, f"{url} at {endpoint or 'AWS'}", keyring)


def _config(environment: Mapping[str, str]) -> S3Config:
    config: S3Config = {}
    if key := environment.get("AWS_ACCESS_KEY_ID"):
        config["access_key_id"] = key
    if secret := environment.get("AWS_SECRET_ACCESS_KEY"):
        config["secret_access_key"] = secret
    if token := environment.get("AWS_SESSION_TOKEN"):
        config["session_token"] = token
    if region := environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION"):
        config["region"] = region
    return config


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
