"""How the client reaches brokers: TLS, and who it is. Made from the settings; secrets come from the environment or from files.

Files are read when a client is made; certificates and tokens once more for each connection, so a renewed one needs no restart. A token is
in a file that something else renews, or comes from a server that gives them to clients: that one is waited for, on the thread that connects.
"""

from __future__ import annotations

import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from kafka.net.sasl.oauth import AbstractTokenProvider

from contracts.errors import InvalidSettings, LogRefused
from runtime.certificates import days_left
from runtime.kafka_settings import OAUTHBEARER, KafkaSettings
from runtime.secret_values import KAFKA_PASSWORD, secret_value

_NO_PASSWORD = ""
"""With none, the password of a key would be asked for on the terminal."""
_TOKEN_SECONDS = 5.0
"""At most, for a server that gives tokens, on the thread that connects."""
_USED_SHARE = 0.8
"""Of a token's life: a new one is fetched then, so that none expires on its way."""
_UNKNOWN_LIFE = 60.0
_SHOWN = 300


class Access:
    """See the module. Making one opens nothing."""

    def __init__(self, settings: KafkaSettings, environment: Mapping[str, str] = os.environ) -> None:
        self.mechanism = settings.kafka_mechanism
        self.uses_tls = settings.kafka_tls
        self._settings = settings
        self._environment = environment
        self._tokens: FileTokens | FetchedTokens | None = None

    @property
    def is_open(self) -> bool:
        """True if brokers let everybody in, unencrypted."""
        return not self.uses_tls and self.mechanism is None

    def configs(self) -> dict[str, Any]:
        """Arguments of the client's classes. Raises InvalidSettings: a file cannot be read, or a secret is missing; names the setting."""
        found: dict[str, Any] = {"security_protocol": self._protocol()}
        if self.uses_tls:
            self.context()  # reads the files once, to name one that cannot be used
            settings = self._settings
            found |= {"ssl_cafile": settings.kafka_ca, "ssl_certfile": settings.kafka_certificate}
            found |= {"ssl_keyfile": settings.kafka_key, "ssl_password": _NO_PASSWORD}
        if self.mechanism == OAUTHBEARER:
            found |= {"sasl_mechanism": self.mechanism, "sasl_oauth_token_provider": self._provider()}
        elif self.mechanism is not None:
            found |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self._settings.kafka_user,
                "sasl_plain_password": self._password(),
            }
        return found

    def context(self) -> ssl.SSLContext:
        """Checks brokers, and shows this client's certificate if it has one, as the client's own context does. Raises InvalidSettings."""
        settings, context = self._settings, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        for name in ("kafka_ca", "kafka_certificate", "kafka_key"):
            path: Path | None = getattr(settings, name)
            try:
                _ = None if path is None else path.stat()
            except OSError as error:
                raise InvalidSettings(f"{name}: {path} cannot be read ({error.strerror}): put it there") from error
        if settings.kafka_ca is None:
            context.load_default_certs()
        else:
            try:
                context.load_verify_locations(settings.kafka_ca)
            except (OSError, ValueError) as error:  # SSLError is an OSError
                raise InvalidSettings(
                    f"kafka_ca: {settings.kafka_ca} holds no certificate in PEM form ({error})"
                ) from error
        if settings.kafka_certificate is not None:
            certificate, key = settings.kafka_certificate, settings.kafka_key
            try:
                context.load_cert_chain(certificate, key, password=_NO_PASSWORD)
            except (OSError, ValueError) as error:
                raise InvalidSettings(
                    f"kafka_certificate: {certificate} and kafka_key: {key} are no pair of a certificate and its key without a password, "
                    f"in PEM form ({error})"
                ) from error
        return context

    def own_certificate_problem(self) -> str:
        """Why a broker may have refused this client's certificate, as far as it can be seen here; empty if it cannot."""
        path = self._settings.kafka_certificate
        if path is None:
            return "the brokers want a certificate of this client: set kafka_certificate and kafka_key"
        try:
            days = days_left(x509.load_pem_x509_certificate(path.read_bytes()))
        except (OSError, ValueError):
            return ""
        return (
            "" if days > 0 else f"kafka_certificate: {path} expired {-days:.0f} days ago: renew it where it was issued"
        )

    def _protocol(self) -> str:
        return ("SASL_" if self.mechanism else "") + ("SSL" if self.uses_tls else "PLAINTEXT")

    def _provider(self) -> FileTokens | FetchedTokens:
        # One for all clients of a process: they share its token.
        settings = self._settings
        if self._tokens is None and settings.kafka_token_file is not None:
            self._tokens = FileTokens(settings.kafka_token_file)
        elif self._tokens is None:
            url, client = settings.kafka_token_url or "", settings.kafka_user or ""
            self._tokens = FetchedTokens(url, client, self._password(), settings.kafka_token_scope)
        return self._tokens

    def _password(self) -> str:
        found = secret_value(KAFKA_PASSWORD, self._environment)
        if found is None:
            raise InvalidSettings(
                f"kafka_mechanism = {self.mechanism} needs the secret of {self._settings.kafka_user}: set {KAFKA_PASSWORD}, or "
                f"{KAFKA_PASSWORD}_FILE to a file with it"
            )
        return found


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
            answer = httpx.post(self._url, data=self._form, auth=self._login, timeout=_TOKEN_SECONDS)
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


OPEN = Access(KafkaSettings())
