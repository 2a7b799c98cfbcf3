"""Where versions live when several machines share them: a bucket. Waits for: the object store, each request bounded.

<prefix>/<policy>/v000012/payload-<blake3>.bin   first
<prefix>/<policy>/v000012/manifest.json          second, only if there is none; a version exists from that moment

A folder lets publishers take turns, a bucket cannot. So each payload has a name of its own: whoever loses the manifest
has overwritten nothing that the winner names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple
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

from contracts.errors import InvalidSettings, Unavailable
from contracts.weights.codec import check_payload
from contracts.weights.format import Manifest, parse_manifest
from contracts.weights.layout import (
    VERSION,
    check_lineage,
    check_place,
    check_same,
    no_payload,
    no_version,
    policy_folder,
    version_folder,
)
from contracts.weights.store import WeightStore

if TYPE_CHECKING:
    from obstore.store import ObjectStore, S3Config

_CHUNK_BYTES = 16 * 2**20
_CONCURRENCY = 4
_PROBE = ".millrace-probe"
_INSTANCE_METADATA = "169.254.169.254"
_REFUSED = re.compile(r"status code: 40[13]\b")


class Patience(NamedTuple):
    """How long one request may take, and how often it is repeated. Seconds.

    A part of a payload needs a rate of 16 MiB in `request`; a store that is gone is given up after about three seconds
    if it refuses, after `retrying` and one more request if it is silent.
    """

    connect: float = 5.0
    request: float = 60.0
    retries: int = 4
    retrying: float = 30.0


PATIENCE = Patience()


class ObjectWeightStore(WeightStore):
    """Versions in a bucket of any store that keeps `If-None-Match: *` on a write.

    Args:
        objects: the bucket, or a part of it.
        place: what messages call it.
    """

    def __init__(self, objects: ObjectStore, place: str) -> None:
        self._objects = objects
        self._place = place

    def publish(self, manifest: Manifest, payload: bytes) -> None:
        """See `WeightStore.publish`.

        Raises:
            Unavailable: the store is away; the version stays invisible unless a manifest was stored that nobody
                could confirm: publishing again settles it.
            InvalidSettings: it refuses the keys, or there is no such bucket.
        """
        check_payload(manifest, payload)
        check_lineage(manifest)
        folder = version_folder(manifest.policy, manifest.version)
        if (stored := self._find(manifest.policy, manifest.version)) is not None:
            check_same(stored, manifest)
            return
        payload_path = _payload_path(folder, manifest)
        text = msgspec.json.format(msgspec.json.encode(manifest))
        with self._failures_named():
            obstore.put(self._objects, payload_path, payload, chunk_size=_CHUNK_BYTES, max_concurrency=_CONCURRENCY)
            # One that was repeated because its answer was lost finds its own manifest: equal, so no conflict.
            with suppress(AlreadyExistsError, PreconditionError):
                obstore.put(self._objects, f"{folder}/manifest.json", text, mode="create")
        self._settle(manifest, payload_path)

    def manifest(self, policy: str, version: int) -> Manifest:
        """See `WeightStore.manifest`."""
        if (found := self._find(policy, version)) is None:
            raise no_version(policy, version, self.versions(policy))
        return found

    def payload(self, policy: str, version: int) -> bytes:
        """See `WeightStore.payload`. In parts, so that the time a request may take says nothing about the size."""
        manifest = self.manifest(policy, version)
        path = _payload_path(version_folder(policy, version), manifest)
        try:
            with self._failures_named(), ThreadPoolExecutor(_CONCURRENCY) as pool:
                # What is there, not what is expected: that it differs must come out when it is checked.
                size = obstore.head(self._objects, path)["size"]
                return b"".join(pool.map(lambda start: self._part(path, start, size), range(0, size, _CHUNK_BYTES)))
        except FileNotFoundError as error:
            raise no_payload(policy, version) from error

    def versions(self, policy: str) -> list[int]:
        """See `WeightStore.versions`."""
        prefix = policy_folder(policy)
        with self._failures_named():
            try:
                pages = list(obstore.list(self._objects, f"{prefix}/", chunk_size=1000))
            except FileNotFoundError as error:
                raise self._no_bucket() from error
        places = (item["path"].split("/")[-2:] for page in pages for item in page)
        names = (VERSION.fullmatch(folder) for folder, file in places if file == "manifest.json")
        return sorted(int(name[1]) for name in names if name)

    def check(self) -> None:
        """See that the store takes writes and keeps conditions; leaves one empty object.

        Raises:
            InvalidSettings: the keys or the bucket are wrong, or it overwrites what it was told to leave.
            Unavailable: it is away.
        """
        with self._failures_named():
            try:
                for _ in range(2):
                    obstore.put(self._objects, _PROBE, b"", mode="create")
            except (AlreadyExistsError, PreconditionError):
                return
            except FileNotFoundError as error:
                raise self._no_bucket() from error
        raise InvalidSettings(
            f"{self._place} ignores `If-None-Match: *`: two trainers could publish one version; use a store that keeps it"
        )

    def _find(self, policy: str, version: int) -> Manifest | None:
        path = f"{version_folder(policy, version)}/manifest.json"
        try:
            with self._failures_named():
                text = bytes(obstore.get(self._objects, path).bytes())
        except FileNotFoundError:
            return None
        return check_place(policy, version, parse_manifest(text))

    def _settle(self, manifest: Manifest, payload_path: str) -> None:
        """See whose manifest it is that is stored now; the loser's payload goes away."""
        stored = self._find(manifest.policy, manifest.version)
        if stored is None:
            raise Unavailable(f"{self._place} did not keep version {manifest.version}: publish it again")
        if stored.payload_blake3 != manifest.payload_blake3:
            with self._failures_named(), suppress(FileNotFoundError):
                obstore.delete(self._objects, payload_path)
        check_same(stored, manifest)

    def _part(self, path: str, start: int, size: int) -> bytes:
        return bytes(obstore.get_range(self._objects, path, start=start, end=min(start + _CHUNK_BYTES, size)))

    def _no_bucket(self) -> InvalidSettings:
        return InvalidSettings(f"{self._place} does not exist: create the bucket, or correct weights_url")

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
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
    url: str, environment: Mapping[str, str] = os.environ, patience: Patience = PATIENCE
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
    return ObjectWeightStore(objects, f"{url} at {endpoint or 'AWS'}")


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


def _payload_path(folder: str, manifest: Manifest) -> str:
    return f"{folder}/payload-{manifest.payload_blake3}.bin"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
