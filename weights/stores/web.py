"""Versions behind a web server: a static one, or a region's cache before it. Nothing can be written there.

In: the URL of a store's root folder. Out: edges, chunks and pointers. Waits for: the server, each silence bounded, and each
answer as a whole: `weights.stores.pace`.

A web server lists nothing, so edges are asked for by their names: the step, the full copy, and a fold from each version
that whoever asks holds. A server that ignores Range is borne; one that closes in the middle of a chunk costs nothing but
another request, for what came is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, Self

import httpx

from contracts.errors import InvalidSettings, NotFound, Unavailable, Unsupported, WeightsRefused
from weights.files import too_long
from weights.reader import WeightReader
from weights.stores.pace import Pace, keep_pace
from weights.versions.layout import PRIMARIES, Verifier, chunk_path, is_primary, no_chunk
from weights.versions.manifest import Chunk, Manifest
from weights.versions.pointer import MOST_BYTES, PointerStore, Stored, pointer_path
from weights.versions.snapshot import Listed

_OK, _PARTIAL, _NOT_FOUND, _TIMEOUT, _BEYOND, _TOO_MANY, _SERVER_ERROR = 200, 206, 404, 408, 416, 429, 500
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")
_SHOWN_BYTES = 300
_DIGITS = 20


class Patience(NamedTuple):
    """How long one request may take: a cache is silent while it fetches a chunk."""

    connect: float = 5.0
    """Seconds."""
    silence: float = 60.0
    """Seconds in which nothing comes."""
    least_rate: float = 2.0**16
    """Bytes a second: what comes more slowly, over all of an answer less one `silence`, is given up."""


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
        self._pace = Pace(patience.silence, patience.least_rate)
        keep_pace(self._client, self._pace)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def text(self, path: str, most: int) -> Stored | None:
        """A file of at most `most` bytes, and the server's tag of it; None if there is none.

        Raises:
            Unavailable: the server is away, fails, is too slow, or stopped in the middle; asking again is safe.
            InvalidSettings: it refuses, or sends elsewhere.
            WeightsRefused: `too_long`, as it says or as it turns out.
        """
        content = bytearray()
        with self._pace.begun(), self._failures_named(path), self._client.stream("GET", path) as answer:
            if not self._is_there(path, answer):
                return None
            said = answer.headers.get("content-length", "")
            if said.isdecimal() and len(said) < _DIGITS and int(said) > most:
                raise too_long(f"{self.place}/{path}", most)
            for piece in answer.iter_raw():
                content += piece
                if len(content) > most:
                    raise too_long(f"{self.place}/{path}", most)
            return Stored(bytes(content), answer.headers.get("etag", ""))

    def part(self, path: str, start: int, end: int) -> bytes | None:
        """Bytes `start` to `end` of a file, or the first of these if the answer broke off; None if there is no file.

        Raises:
            Unavailable, InvalidSettings: as `text`, if nothing came, or too little for the time it took: whoever asks for
                the rest of what never comes would do so for ever.
            WeightsRefused: `wrong_range`, the server sends another part than it was asked for.
        """
        content, skipped, keeps_pace = bytearray(), 0, False
        try:
            fields = {"range": f"bytes={start}-{end - 1}"}
            with (
                self._pace.begun(),
                self._failures_named(path),
                self._client.stream("GET", path, headers=fields) as answer,
            ):
                if answer.status_code == _BEYOND:
                    return b""
                if not self._is_there(path, answer):
                    return None
                skipped = start - self._first(path, answer, start)
                for piece in answer.iter_raw():
                    content += piece
                    keeps_pace = self._pace.is_kept(len(content) - skipped)
                    if len(content) > skipped + end - start:
                        break
        except Unavailable:
            if len(content) <= skipped or not keeps_pace:
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

    _connections = 4

    def __init__(
        self, folder: WebFolder, keyring: Verifier | None = None, held: Callable[[], Collection[int]] = tuple
    ) -> None:
        super().__init__(keyring)
        self._folder = folder
        self._held = held

    def _numbers(self, policy: str) -> list[int]:
        """Never: without a snapshot nobody can say. Raises Unsupported."""
        raise Unsupported(
            f"{self._folder.place} cannot say which versions of {policy!r} it has: ask for one by its number"
        )

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

    def read_small(self, path: str, most: int) -> bytes | None:
        """See `WeightReader.read_small`; also raises InvalidSettings, as `WebFolder.text`."""
        stored = self._folder.text(path, most)
        return None if stored is None else stored.text

    def survey(self, policy: str, version: int) -> tuple[list[Manifest], list[WeightsRefused]]:
        """See `WeightReader.survey`. Raises NotFound: there is no such version."""
        edges, refused = super().survey(policy, version)
        if not refused and not any(is_primary(edge) for edge in edges):
            raise NotFound(f"{self._folder.place} has no version {version} of policy {policy!r}", policy=policy)
        return edges, refused

    def _names(self, policy: str, version: int) -> list[str]:  # noqa: ARG002 of the port
        return [*PRIMARIES, *(f"fold-{held:06d}.json" for held in sorted(set(self._held())) if held < version)]

    def _listed_names(self, entry: Listed | None) -> list[str]:
        """Of the folds only those that whoever asks could use: each may be a round trip to the other side of the world."""
        usable = {*PRIMARIES, *(f"fold-{held:06d}.json" for held in self._held())}
        return [name for name in super()._listed_names(entry) if name in usable]


class HttpPointers(PointerStore):
    """Pointers beside these versions; they are moved where the store can be written."""

    def __init__(self, folder: WebFolder) -> None:
        self._folder = folder

    def read(self, policy: str, arm: str) -> Stored | None:
        """See `PointerStore.read`; also raises as `WebFolder.text`."""
        try:
            return self._folder.text(pointer_path(policy, arm), MOST_BYTES)
        except WeightsRefused as error:
            return Stored(b"", "", problem=error.message)

    def replace(self, policy: str, arm: str, text: bytes, seen: Stored | None) -> None:  # noqa: ARG002 of the port
        """Never. Raises InvalidSettings."""
        raise InvalidSettings(
            f"{self._folder.place} is read only: move {policy}/{arm} where the store is a folder or s3://bucket/prefix"
        )
