"""Objects behind a web server: a static one, or a region's cache before it. Read only.

In: the URL of a store's root folder. Out: its objects. Waits for: the server; `weights.stores.deadline` bounds each answer.

A server that ignores Range is accepted. If it closes the connection in the middle of a chunk, the bytes that came are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import httpx

from contracts.errors import InvalidSettings, Unavailable, Unsupported, WeightsRefused
from weights.files import too_long
from weights.stores.deadline import AnswerDeadline
from weights.stores.port import Objects

_OK, _PARTIAL, _NOT_FOUND, _TIMEOUT, _BEYOND, _TOO_MANY, _SERVER_ERROR = 200, 206, 404, 408, 416, 429, 500
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(?:\d+|\*)")
_SHOWN_BYTES = 300
_DIGITS = 20


class WebTimeouts(NamedTuple):
    """How long one request may take: a cache is silent while it fetches a chunk."""

    connect: float = 5.0
    silence: float = 60.0
    """Seconds in which nothing comes; those of `connect` come before."""
    least_rate: float = 2.0**16
    """Bytes a second. A slower answer is given up; its first `silence` seconds do not count."""


TIMEOUTS = WebTimeouts()


class WebObjects(Objects):
    """Files below `http(s)://[USER:PASSWORD@]HOST/PREFIX`, to read only; nothing is listed. Raises InvalidSettings."""

    connections = 4
    is_read_only = True

    def __init__(self, url: str, timeouts: WebTimeouts = TIMEOUTS) -> None:
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise InvalidSettings(f"{url!r} is not the address of a web server: {error}") from error
        if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.query or parsed.fragment:
            raise InvalidSettings(f"a store behind a web server is http(s)://HOST/PREFIX, not {url!r}")
        self.place = str(parsed.copy_with(userinfo=b"")).rstrip("/")
        self._client = httpx.Client(
            base_url=parsed,
            timeout=httpx.Timeout(timeouts.silence, connect=timeouts.connect),
            headers={"accept-encoding": "identity"},  # a range of a compressed file is not a range of the file
        )
        self._deadline = AnswerDeadline(timeouts.silence, timeouts.least_rate)
        self._deadline.apply_to(self._client)

    def close(self) -> None:
        """See `Objects.close`."""
        self._client.close()

    def get(self, path: str, most: int) -> bytes | None:
        """See `Objects.get`."""
        content = bytearray()
        with self._deadline.request(), self._failures_named(path), self._client.stream("GET", path) as answer:
            if not self._is_there(path, answer):
                return None
            announced = answer.headers.get("content-length", "")
            if announced.isdecimal() and len(announced) < _DIGITS and int(announced) > most:
                raise too_long(f"{self.place}/{path}", most)
            for piece in answer.iter_raw():
                content += piece
                if len(content) > most:
                    raise too_long(f"{self.place}/{path}", most)
        return bytes(content)

    def get_range(self, path: str, start: int, end: int) -> bytes | None:
        """See `Objects.get_range`. Raises Unavailable also if so little came that asking for the rest could go on without end."""
        content, skipped, is_fast_enough = bytearray(), 0, False
        try:
            fields = {"range": f"bytes={start}-{end - 1}"}
            with (
                self._deadline.request(),
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
                    is_fast_enough = self._deadline.is_fast_enough(len(content) - skipped)
                    if len(content) > skipped + end - start:
                        break
        except Unavailable:
            if len(content) <= skipped or not is_fast_enough:
                raise
        return bytes(memoryview(content)[skipped : skipped + end - start])

    def list_below(self, folder: str, after: str = "") -> NoReturn:  # noqa: ARG002 of the port
        """Raises Unsupported."""
        raise Unsupported(f"{self.place} cannot say what is below {folder!r}: ask for a version by its number")

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise InvalidSettings(
            f"{self.place} is read only: publish, announce and move pointers where the store is a folder or s3://bucket/prefix"
        )

    put = put_if_absent = put_if_unchanged = head = delete = renew = turn = _refuse

    def _first(self, path: str, answer: httpx.Response, start: int) -> int:
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
                f"{self.place} answers {status} about {path} ({said}): see that the server and the store behind it run; "
                "it is safe to try again"
            )
        raise InvalidSettings(
            f"{self.place} answers {status} about {path} ({said}): give the address that serves the store's folder itself, "
            "to everybody, with 404 for files that do not exist"
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
