"""How the client reaches brokers: TLS, and who it is. Made from the settings; secrets come from the environment or from files.

Files are read when a client is made; certificates and tokens once more for each connection, so a renewed one needs no restart.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509

from contracts.errors import InvalidSettings
from runtime.certificates import days_left
from runtime.kafka_settings import OAUTHBEARER, KafkaSettings
from runtime.log.kafka.tokens import FetchedTokens, FileTokens
from runtime.secret_values import KAFKA_PASSWORD, secret_value


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
        """Arguments of the client's classes.

        Raises:
            InvalidSettings: a file cannot be read, or a secret is missing; names the setting.
        """
        found: dict[str, Any] = {"security_protocol": self._protocol()}
        if self.uses_tls:
            found["ssl_context"] = _Context.of(self._settings)
        if self.mechanism == OAUTHBEARER:
            found |= {"sasl_mechanism": self.mechanism, "sasl_oauth_token_provider": self._provider()}
        elif self.mechanism is not None:
            found |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self._settings.kafka_user,
                "sasl_plain_password": self._password(),
            }
        return found

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
        if self._tokens is None:
            settings = self._settings
            if settings.kafka_token_file is not None:
                self._tokens = FileTokens(settings.kafka_token_file)
            else:
                self._tokens = FetchedTokens(
                    settings.kafka_token_url or "",
                    settings.kafka_user or "",
                    self._password(),
                    settings.kafka_token_scope,
                )
        return self._tokens

    def _password(self) -> str:
        found = secret_value(KAFKA_PASSWORD, self._environment)
        if found is None:
            raise InvalidSettings(
                f"kafka_mechanism = {self.mechanism} needs the secret of {self._settings.kafka_user}: set {KAFKA_PASSWORD}, or "
                f"{KAFKA_PASSWORD}_FILE to a file with it"
            )
        return found


class _File(NamedTuple):
    """A file, and the setting that names it."""

    setting: str
    path: Path

    @property
    def changed_at(self) -> int:
        try:
            return self.path.stat().st_mtime_ns
        except OSError as error:
            raise InvalidSettings(
                f"{self.setting}: {self.path} cannot be read ({error.strerror}): put it there"
            ) from error


class _Context(ssl.SSLContext):
    """Checks brokers, and shows this client's certificate if it has one."""

    _files: tuple[_File, ...] = ()
    _seen: tuple[int, ...] = ()

    @classmethod
    def of(cls, settings: KafkaSettings) -> _Context:
        """A context with the files of the settings. Raises InvalidSettings."""
        context = cls(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        named = [(name, getattr(settings, name)) for name in ("kafka_ca", "kafka_certificate", "kafka_key")]
        context._files = tuple(_File(name, path) for name, path in named if path is not None)
        if settings.kafka_ca is None:
            context.load_default_certs()
        context._renew()
        return context

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """See `ssl.SSLContext`. Files that changed since the last connection are read first."""
        self._renew()
        return super().wrap_socket(*args, **kwargs)

    def _renew(self) -> None:
        seen = tuple(file.changed_at for file in self._files)
        if seen == self._seen:
            return
        paths = {file.setting: file.path for file in self._files}
        if (authority := paths.get("kafka_ca")) is not None:
            try:
                self.load_verify_locations(authority)
            except (OSError, ValueError) as error:  # SSLError is an OSError
                raise InvalidSettings(f"kafka_ca: {authority} holds no certificate in PEM form ({error})") from error
        if (certificate := paths.get("kafka_certificate")) is not None:
            try:
                # A key with a password would be asked for on the terminal.
                self.load_cert_chain(certificate, paths["kafka_key"], password=lambda: "")
            except (OSError, ValueError) as error:
                raise InvalidSettings(
                    f"kafka_certificate: {certificate} and kafka_key: {paths['kafka_key']} are no pair of a certificate and its "
                    f"key without a password, in PEM form ({error})"
                ) from error
        self._seen = seen


OPEN = Access(KafkaSettings())
"""Brokers that let everybody in."""
