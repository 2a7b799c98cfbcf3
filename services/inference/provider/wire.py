"""Speaks to the provider: a request out, a status and a body or events back.

In: bodies. Out: answers as they arrive. Waits for: the provider, up to ten minutes without a byte, as its own SDKs do. Nothing is sent twice:
the app's SDK decides whether to retry, by what the provider says.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import NamedTuple

import httpx

from contracts.errors import EngineFailed, ProviderFailed, ProviderSilent
from services.inference.engine.connection import Lines
from services.inference.provider.dialect import Dialect
from services.provider import ProviderSettings

_CONNECT_SECONDS, _READ_SECONDS = 10.0, 600.0
_MOST_BYTES = 16 * 2**20
"""Of a whole answer, or of one line of a stream."""
_MOST_STREAMED = 256 * 2**20
"""Of a whole stream: some hundred bytes around each token of the longest answers."""
_MOST_CONNECTIONS = 1024


class ProviderEvent(NamedTuple):
    """An event of a stream. `data` None: a comment, by which a provider keeps the connection open."""

    data: bytes | None
    comment: bytes = b""


class ProviderClient:
    """See the module. Belongs to one event loop. Raises InvalidSettings: the key is missing."""

    def __init__(self, provider: ProviderSettings) -> None:
        self._provider, self._key = provider, provider.key
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS, pool=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=_MOST_CONNECTIONS // 8),
            headers={"user-agent": "millrace"},
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # or one caller's would be sent for the others
        )

    @asynccontextmanager
    async def sent(self, dialect: Dialect, body: bytes, given: Mapping[str, str]) -> AsyncIterator[httpx.Response]:
        """The response to a request, before its body is read. `given`: headers of the caller. Raises ProviderFailed, ProviderSilent: there is none."""
        headers = {"content-type": "application/json"}
        headers |= dialect.credentials(self._key) if self._key else {}
        headers |= {name: given[name] for name in dialect.headers if name in given}
        encoded = httpx.Headers(headers, encoding="latin-1")
        asked = self._client.build_request("POST", self._provider.url + dialect.path, content=body, headers=encoded)
        with _named():
            response = await self._client.send(asked, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()


async def read_whole(response: httpx.Response) -> bytes:
    """The body. Raises ProviderFailed: it broke off, or is too large; ProviderSilent."""
    body = bytearray()
    with _named():
        async for part in response.aiter_bytes():
            body += part
            if len(body) > _MOST_BYTES:
                raise ProviderFailed(f"the provider's answer has more than {_MOST_BYTES} bytes")
    return bytes(body)


async def events_of(response: httpx.Response) -> AsyncIterator[ProviderEvent]:
    """The events of a stream. Names of events stand in their data too, so they are left out. Raises like `read_whole`."""
    lines, data, num_bytes = Lines(_MOST_BYTES), list[bytes](), 0
    with _named():
        async for part in response.aiter_bytes():
            num_bytes += len(part)
            if num_bytes > _MOST_STREAMED:
                raise ProviderFailed(f"the provider's stream has more than {_MOST_STREAMED} bytes")
            for ended in lines.split(part):
                line = ended.rstrip(b"\r")
                if line.startswith(b"data:"):
                    data.append(line[5:].strip())
                elif line.startswith(b":"):
                    yield ProviderEvent(None, line + b"\n\n")
                elif not line and data:
                    yield ProviderEvent(b"\n".join(data))
                    data = []
    if data:  # the last event needs no empty line
        yield ProviderEvent(b"\n".join(data))


@contextmanager
def _named() -> Iterator[None]:
    """What goes wrong inside is said of the provider."""
    try:
        yield
    except httpx.ReadTimeout as error:
        raise ProviderSilent(f"the provider sent nothing for {_READ_SECONDS:.0f} s") from error
    except (httpx.TransportError, httpx.DecodingError) as error:
        raise ProviderFailed(f"the provider gave no complete answer ({type(error).__name__}: {error})") from error
    except EngineFailed as error:
        raise ProviderFailed(f"the provider sent a line of more than {_MOST_BYTES} bytes") from error
