"""Objects in a bucket, each request bounded. It must keep `If-None-Match: *` and `If-Match` on a write; `WeightStore.check` tries the first."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit

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
from weights.files import too_long
from weights.stores.port import Objects, StoredObject

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta, UpdateVersion
    from obstore.store import ClientConfig, ObjectStore, S3Config

_PIECE_BYTES = 2**20
_RENEW_SECONDS = 1800.0
"""A chunk older than this is written again if a new version needs it: pruning may remove one that is an hour old."""
_VARIABLES = (
    *("access_key_id", "secret_access_key", "session_token"),
    # Without keys: those of the workload, which the client fetches with a token and renews by itself.
    *("web_identity_token_file", "role_arn", "role_session_name", "endpoint_url_sts"),
    *("container_credentials_full_uri", "container_credentials_relative_uri", "container_authorization_token_file"),
)
"""What the client is told, each from the variable of its name: AWS_ACCESS_KEY_ID, ..."""
_INSTANCE_METADATA = "169.254.169.254"
_BEYOND = re.compile(r"status code: 416\b|Invalid range")
_REFUSED = re.compile(r"status code: 40[13]\b")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_WRONG_CERTIFICATE = (
    ("Expired", "has expired: renew it there"),
    ("NotValidYet", "is not valid yet: check both clocks"),
    ("NotValidForName", "is not for that host: name the host as its certificate does, in AWS_ENDPOINT_URL"),
    ("UnknownIssuer", "is of an authority that nobody here trusts: set AWS_CA_BUNDLE to a file with that authority"),
)
_TOKEN_FILE = "Failed to read token file"  # noqa: S105 the client's words
_TOKEN_SERVICE = "performing POST REDACTED"  # noqa: S105 as above, about the service that exchanges tokens for keys


class BucketTimeouts(NamedTuple):
    """How long one request may take, and how often it is repeated. Seconds.

    A chunk needs a rate of 8 MiB in `request`. A store that refuses connections is given up after about three seconds, a
    silent one after `retrying` and one more request.
    """

    connect: float = 5.0
    request: float = 60.0
    retries: int = 4
    retrying: float = 30.0


TIMEOUTS = BucketTimeouts()


class BucketObjects(Objects):
    """Objects in a bucket, or in a part of it. `clock`: UTC epoch seconds, about those of the store."""

    connections = 4

    def __init__(self, bucket: ObjectStore, place: str, clock: Callable[[], float] = time.time) -> None:
        self.bucket, self.place, self._clock = bucket, place, clock

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """See `Objects.put_if_absent`."""
        return self._put_if(path, content, "create")

    def put_if_unchanged(self, path: str, content: bytes, tag: str) -> bool:
        """See `Objects.put_if_unchanged`."""
        return self._put_if(path, content, {"e_tag": tag})

    def put(self, path: str, content: bytes | memoryview) -> None:
        """See `Objects.put`."""
        with self._failures_named(), self._bucket_is_there():
            obstore.put(self.bucket, path, content, use_multipart=False)

    def get(self, path: str, most: int) -> bytes | None:
        """See `Objects.get`. Neither the size that the store announces nor the size that it sends is trusted."""
        with self._failures_named(), suppress(FileNotFoundError):
            found = obstore.get(self.bucket, path)
            if found.meta["size"] > most:
                raise too_long(path, most)
            return _bounded(found, path, most)
        return None

    def get_range(self, path: str, start: int, end: int) -> bytes | None:
        """See `Objects.get_range`."""
        with self._failures_named(), suppress(FileNotFoundError):
            try:
                return _bounded(obstore.get(self.bucket, path, options={"range": (start, end)}), path, end - start)
            except BaseError as error:
                if not _BEYOND.search(str(error)):
                    raise
                return b""
        return None

    def list_below(self, folder: str, after: str = "") -> Iterator[StoredObject]:
        """See `Objects.list_below`; page by page."""
        offset = f"{folder}/{after}" if after else None
        with self._failures_named(), self._bucket_is_there():
            for page in obstore.list(self.bucket, f"{folder}/", offset=offset, chunk_size=1000):
                yield from map(_stored, page)

    def head(self, path: str) -> StoredObject | None:
        """See `Objects.head`."""
        with self._failures_named(), suppress(FileNotFoundError):
            return _stored(obstore.head(self.bucket, path))
        return None

    def delete(self, path: str) -> None:
        """See `Objects.delete`."""
        with self._failures_named(), suppress(FileNotFoundError):
            obstore.delete(self.bucket, path)

    def renew(self, path: str, num_bytes: int) -> bool:
        """See `Objects.renew`: what is old must be written again to become young."""
        found = self.head(path)
        return found is not None and found.num_bytes == num_bytes and self._clock() - found.written_at < _RENEW_SECONDS

    def _put_if(self, path: str, content: bytes, mode: Literal["create"] | UpdateVersion) -> bool:
        with self._failures_named():
            try:
                obstore.put(self.bucket, path, content, mode=mode)
            except (AlreadyExistsError, PreconditionError):
                return False
            except FileNotFoundError as error:
                if mode == "create":
                    raise self._no_bucket() from error
                return False
        return True

    @contextmanager
    def _bucket_is_there(self) -> Iterator[None]:
        """For requests that fail with "not found" only if there is no bucket."""
        try:
            yield
        except FileNotFoundError as error:
            raise self._no_bucket() from error

    def _no_bucket(self) -> InvalidSettings:
        return InvalidSettings(f"{self.place} does not exist: create the bucket, or correct weights_url")

    @contextmanager
    def _failures_named(self) -> Iterator[None]:
        """Turn the client's errors into something that an operator can act on. FileNotFoundError passes."""
        try:
            yield
        except BaseError as error:
            raise self._named(error) from error

    def _named(self, error: BaseError) -> InvalidSettings | Unavailable:
        text = _first_line(error)
        if wrong := _CERTIFICATE.search(str(error)):
            where = "AWS_ENDPOINT_URL_STS" if _TOKEN_SERVICE in text else "the server"
            known = (says for begins, says in _WRONG_CERTIFICATE if wrong[1].startswith(begins))
            problem = next(known, f"is refused ({wrong[1]}): give it another one")
            return Unavailable(f"{self.place} cannot be used: the certificate of {where} {problem}")
        if _TOKEN_FILE in text or (_TOKEN_SERVICE in text and "status code: 4" in text):
            return InvalidSettings(
                f"{self.place} gets no keys for this workload ({text}): check AWS_WEB_IDENTITY_TOKEN_FILE, and that AWS_ROLE_ARN may be "
                "taken on with its token"
            )
        if _INSTANCE_METADATA in text:  # the client looks there for the keys of a machine if it was given none
            return InvalidSettings(
                f"there are no keys for {self.place}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the workload an identity "
                "(AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, or AWS_CONTAINER_CREDENTIALS_FULL_URI)"
            )
        # For a listing the client only tells the answer's text.
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _REFUSED.search(text):
            return InvalidSettings(
                f"{self.place} refuses these keys ({text}): set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of "
                "an account that may list, read and write there"
            )
        if "NoSuchBucket" in text:
            return self._no_bucket()
        return Unavailable(
            f"{self.place} does not answer ({text}): see that it runs and that AWS_ENDPOINT_URL and AWS_REGION are "
            "right; it is safe to try again"
        )


def open_bucket(
    url: str, environment: Mapping[str, str] = os.environ, timeouts: BucketTimeouts = TIMEOUTS
) -> BucketObjects:
    """The objects at `s3://bucket/prefix`, with the AWS_* variables. Raises InvalidSettings: they or the URL cannot be used."""
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc:
        raise InvalidSettings(f"weights_url is s3://bucket/prefix, not {url!r}")
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    try:
        bucket = S3Store(
            parts.netloc,
            prefix=parts.path.strip("/") or None,
            config=_config(environment, endpoint),
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=timeouts.connect),
                "timeout": timedelta(seconds=timeouts.request),
                **_authorities(environment),
            },
            retry_config={"max_retries": timeouts.retries, "retry_timeout": timedelta(seconds=timeouts.retrying)},
        )
    except (BaseError, ValueError) as error:
        raise InvalidSettings(f"the object store cannot be set up ({_first_line(error)}): check AWS_*") from error
    return BucketObjects(bucket, f"{url} at {endpoint or 'AWS'}")


def _config(environment: Mapping[str, str], endpoint: str) -> S3Config:
    found = {name: environment.get(f"AWS_{name.upper()}") for name in _VARIABLES} | {"endpoint": endpoint}
    found["region"] = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    return {name: value for name, value in found.items() if value}  # type: ignore[return-value]


def _authorities(environment: Mapping[str, str]) -> ClientConfig:
    if not (path := environment.get("AWS_CA_BUNDLE")):
        return {}
    try:
        return {"root_certificate": Path(path).read_bytes()}
    except OSError as error:
        raise InvalidSettings(
            f"AWS_CA_BUNDLE: {path} cannot be read ({error.strerror}): put the authorities there"
        ) from error


def _stored(item: ObjectMeta) -> StoredObject:
    return StoredObject(item["path"], item["size"], item["last_modified"].timestamp(), item["e_tag"] or "")


def _bounded(found: GetResult, path: str, most: int) -> bytes:
    content = bytearray()
    for piece in found.stream(min_chunk_size=_PIECE_BYTES):
        content += piece
        if len(content) > most:
            raise too_long(path, most)
    return bytes(content)


def _first_line(error: Exception) -> str:
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
