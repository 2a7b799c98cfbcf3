"""Versions behind a web server: a static one, or a region's cache before it. Nothing can be written there.

In: the URL of a store's root folder. Out: edges, chunks and pointers. Waits for: the server, each silence bounded.

A web server lists nothing, so edges are asked for by their names: the step, the full copy, and a fold from each version
that whoever asks holds. A server that ignores Range is borne; one that closes in the middle of a chunk costs nothing but
another request, for what came is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, Self

import httpx

from contracts.errors import InvalidSettings, NotFound, Unavailable, Unsupported, WeightsRefused
from contracts.weights.layout import PRIMARIES, Verifier, chunk_path, no_chunk, version_folder
from contracts.weights.manifest import Chunk, Manifest
from contracts.weights.pointer import PointerStore, Stored, pointer_path
from contracts.weights.reader import WeightReader

_OK, _PARTIAL, _NOT_FOUND, _TIMEOUT, _BEYOND, _TOO_MANY, _SERVER_ERROR = 200, 206, 404, 408, 416, 429, 500
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")
_LONGEST_TEXT = 64 * 2**20
_SHOWN_BYTES = 300
_CONCURRENCY = 4


class Patience(NamedTuple):
    """Seconds to connect, and of silence until a request is given up: a cache is silent while it fetches a chunk."""

    connect: float = 5.0
    silence: float = 60.0


PATIENCE = Patience()


class WebFolder:
    """Files below a URL. Any thread may ask.

    Args:
        url: `http://HOST/PREFIX` or `https://`, with `USER:PASSWORD@` if it takes one.
        patience: how long to wait.

    Raises:
        InvalidSettings: it is another kind of URL.
    """

    def __init__(self, url: str, patience: Patience = PATIENCE) -> None:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise InvalidSettings(f"{url!r} is no address of a web server: {error}") from error
        if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.query or parsed.fragment:
            raise InvalidSettings(f"a store behind a web server is http(s)://HOST/PREFIX, not {url!r}")
        self.place = str(parsed.copy_with(userinfo=b"")).rstrip("/")
        self._client = httpx.Client(
            base_url=parsed,
            timeout=httpx.Timeout(patience.silence, connect=patience.connect),
            headers={"accept-encoding": "identity"},  # a part of what was compressed is no part of the file
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def text(self, path: str) -> Stored | None:
        """A small file, and the server's tag of it; None if there is none.

        Raises:
            Unavailable: the server is away, fails, or stopped in the middle; asking again is safe.
            InvalidSettings: it refuses, or sends elsewhere.
            WeightsRefused: `too_long`, it is no small file.
        """
        content = bytearray()
        with self._failures_named(path), self._client.stream("GET", path) as answer:
            if not self._is_there(path, answer):
                return None
            for piece in answer.iter_raw():
                content += piece
                if len(content) > _LONGEST_TEXT:
                    raise WeightsRefused("too_long", f"{self.place}/{path} goes on after {_LONGEST_TEXT} bytes")
            return Stored(bytes(content), answer.headers.get("etag", ""))

    def part(self, path: str, start: int, end: int) -> bytes | None:
        """Bytes `start` to `end` of a file, or the first of these if the answer broke off; None if there is no file.

        Raises:
            Unavailable, InvalidSettings: as `text`, if nothing came.
            WeightsRefused: `wrong_range`, the server sends another part than it was asked for.
        """
        content, skipped = bytearray(), 0
        try:
            fields = {"range": f"bytes={start}-{end - 1}"}
            with self._failures_named(path), self._client.stream("GET", path, headers=fields) as answer:
                if answer.status_code == _BEYOND:
                    return b""
                if not self._is_there(path, answer):
                    return None
                skipped = start - self._first(path, answer, start)
                for piece in answer.iter_raw():
                    content += piece
                    if len(content) > skipped + end - start:
                        break
        except Unavailable:
            if len(content) <= skipped:
                raise
        return bytes(memoryview(content)[skipped : skipped + end - start])

    def _first(self, path: str, answer: httpx.Response, start: int) -> int:
        """Where the part begins."""
        if answer.status_code == _OK:
            return 0
        said = answer.headers.get("content-range", "")
        if (found := _CONTENT_RANGE.fullmatch(said)) is None or int(found[1]) != start:
            raise WeightsRefused(
                "wrong_range",
                f"{self.place} was asked for {path} from byte {start} on and sends {said or 'no Content-Range'!r}: "
                "see what stands between here and the store",
            )
        return start

    def _is_there(self, path: str, answer: httpx.Response) -> bool:
        status = answer.status_code
        if status == _NOT_FOUND:
            return False
        if status in {_OK, _PARTIAL}:
            return True
        said = next(answer.iter_raw(_SHOWN_BYTES), b"").decode(errors="replace").strip() or "no reason"
        if status >= _SERVER_ERROR or status in {_TIMEOUT, _TOO_MANY}:
            raise Unavailable(
                f"{self.place} answers {status} about {path} ({said}): see that the server and what stands behind it run; "
                "it is safe to try again"
            )
        raise InvalidSettings(
            f"{self.place} answers {status} about {path} ({said}): give the address that serves the store's folder itself, "
            "to whoever asks, with 404 for what is not there"
        )

    @contextmanager
    def _failures_named(self, path: str) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            raise Unavailable(
                f"{self.place} does not answer about {path} ({str(error) or type(error).__name__}): see that it runs and "
                "can be reached from here; it is safe to try again"
            ) from error


class HttpReader(WeightReader):
    """Versions in a store's folder that a web server shows.

    Args:
        folder: the root of the store.
        keyring: see `WeightReader`.
        held: the versions that whoever asks has, as they are now: folds from these are looked for.
    """

    def __init__(
        self, folder: WebFolder, keyring: Verifier | None = None, held: Callable[[], Collection[int]] = tuple
    ) -> None:
        super().__init__(keyring)
        self._folder = folder
        self._held = held

    def versions(self, policy: str) -> list[int]:
        """Never. Raises Unsupported."""
        raise Unsupported(
            f"{self._folder.place} cannot say which versions of {policy!r} it has: ask for one by its number"
        )

    def manifest(self, policy: str, version: int) -> Manifest:
        """See `WeightReader.manifest`."""
        return self.edges(policy, version)[0]

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        """See `WeightReader.chunk`; less than there is, if the server stopped: ask for the rest.

        Raises:
            NotFound: the server has no such file.
            Unavailable, InvalidSettings, WeightsRefused: see `WebFolder.part`.
        """
        if start >= chunk.num_bytes:
            return b""
        if (content := self._folder.part(chunk_path(policy, chunk.name), start, chunk.num_bytes)) is None:
            raise no_chunk(policy, chunk)
        return content

    def _contents(self, manifest: Manifest) -> Iterator[bytes]:
        for chunk in manifest.chunks:
            content = b""
            while more := self.chunk(manifest.policy, chunk, len(content)):
                content += more
            yield content

    def _text(self, policy: str, version: int, name: str) -> bytes | None:
        stored = self._folder.text(f"{version_folder(policy, version)}/{name}")
        return None if stored is None else stored.text

    def _texts(self, policy: str, version: int) -> dict[str, bytes]:
        names = [*PRIMARIES, *(f"fold-{held:06d}.json" for held in sorted(set(self._held())) if held < version)]
        with ThreadPoolExecutor(_CONCURRENCY) as pool:  # each may be a round trip to the other side of the world
            texts = list(pool.map(lambda name: self._text(policy, version, name), names))
        if all(text is None for text in texts[: len(PRIMARIES)]):
            raise NotFound(f"{self._folder.place} has no version {version} of policy {policy!r}", policy=policy)
        return {name: text for name, text in zip(names, texts, strict=True) if text is not None}


class HttpPointers(PointerStore):
    """Pointers beside these versions; they are moved where the store can be written."""

    def __init__(self, folder: WebFolder) -> None:
        self._folder = folder

    def read(self, policy: str, arm: str) -> Stored | None:
        """See `PointerStore.read`; also raises as `WebFolder.text`."""
        return self._folder.text(pointer_path(policy, arm))

    def replace(self, policy: str, arm: str, text: bytes, seen: Stored | None) -> None:  # noqa: ARG002 of the port
        """Never. Raises InvalidSettings."""
        raise InvalidSettings(
            f"{self._folder.place} is read only: move {policy}/{arm} where the store is a folder or s3://bucket/prefix"
        )
