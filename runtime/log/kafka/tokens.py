"""Tokens of OAUTHBEARER: from a file that something else renews, or from a server that gives them to clients.

In: a file or an address. Out: a token. Waits for: the disk, or that server, `SECONDS` at most, on the thread that connects.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from kafka.net.sasl.oauth import AbstractTokenProvider

from contracts.errors import LogRefused

SECONDS = 5.0
_USED_SHARE = 0.8
"""Of a token's life: a new one is fetched then, so that none expires on its way."""
_UNKNOWN_LIFE = 60.0
_SHOWN = 300


class FileTokens(AbstractTokenProvider):  # type: ignore[misc] # kafka-python has no types
    """Reads the file each time: a projected token of Kubernetes is replaced before it expires."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def token(self) -> str:
        """See `AbstractTokenProvider`. Raises LogRefused."""
        try:
            found = self._path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise _no_token(
                f"kafka_token_file: {self._path} cannot be read ({error}): mount the token there"
            ) from error
        if not found:
            raise _no_token(f"kafka_token_file: {self._path} is empty: mount the token there")
        return found


class FetchedTokens(AbstractTokenProvider):  # type: ignore[misc] # as above
    """Asks for a token as a client with a secret (RFC 6749, section 4.4), and again when most of its life is over."""

    def __init__(
        self, url: str, client: str, secret: str, scope: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url
        self._login = (client, secret)
        self._form = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
        self._clock = clock
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def token(self) -> str:
        """See `AbstractTokenProvider`. Raises LogRefused."""
        with self._lock:
            if self._clock() >= self._until:
                self._fetch()
            return self._token

    def _fetch(self) -> None:
        asked_at = self._clock()
        try:
            answer = httpx.post(self._url, data=self._form, auth=self._login, timeout=SECONDS)
        except httpx.HTTPError as error:
            raise _no_token(
                f"kafka_token_url: {self._url} does not answer ({error}): see that it runs and that this machine trusts its "
                "certificate (SSL_CERT_FILE)"
            ) from error
        if not answer.is_success:
            raise _no_token(
                f"kafka_token_url: {self._url} refuses {self._login[0]} ({answer.status_code} {answer.text[:_SHOWN]}): check "
                "kafka_user, its secret in MILLRACE_KAFKA_PASSWORD, and kafka_token_scope"
            )
        try:
            found = answer.json()
            token, life = str(found["access_token"]), float(found.get("expires_in", _UNKNOWN_LIFE))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise _no_token(
                f"kafka_token_url: {self._url} answers without an access_token: name the token endpoint of the issuer"
            ) from error
        self._token, self._until = token, asked_at + life * _USED_SHARE


def _no_token(message: str) -> LogRefused:
    return LogRefused(message, reason="no_token")
