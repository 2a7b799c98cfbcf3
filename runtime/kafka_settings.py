"""The settings of [millrace] that concern Kafka, topics and brokers. Its secrets come from the environment or files that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from runtime.addresses import host_and_port, is_loopback

OAUTHBEARER = "OAUTHBEARER"


class KafkaSettings(BaseModel):
    """A part of `Settings`; the line under each field documents it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kafka: str | None = None
    """`host:port` of the brokers, separated by commas. Without it, the embedded log in the home."""
    kafka_session_seconds: float | None = Field(default=None, ge=6, le=1800)
    """After this many seconds without a heartbeat, Kafka gives a worker's partitions to its replicas. The broker limits the range.
    Without it 15."""
    kafka_replication: int | None = Field(default=None, ge=1, le=100)
    """How many brokers hold each record. Topics with fewer are refused. Without it, what the brokers give a new topic, unchecked."""
    kafka_min_insync: int | None = Field(default=None, ge=1, le=100)
    """How many of them must have a record before it counts as written. Topics with fewer are refused. Without it one fewer than
    `kafka_replication`, at least 1; without both, what the brokers give."""
    kafka_tls: bool = False
    """Encrypt connections to Kafka, and check certificate and host name of each broker."""
    kafka_ca: Path | None = None
    """PEM file of the authorities that issue the brokers' certificates. Without it, this machine's."""
    kafka_certificate: Path | None = None
    """PEM file of the certificate that this client shows, for brokers that ask for one."""
    kafka_key: Path | None = None
    """PEM file of its private key, without a password."""
    kafka_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """How to sign in to Kafka: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`. Without it, at most by certificate."""
    kafka_user: str | None = None
    """User of PLAIN and SCRAM, or client id at `kafka_token_url`; its secret is `MILLRACE_KAFKA_PASSWORD`."""
    kafka_token_url: str | None = None
    """For OAUTHBEARER: address that gives a token to the client (OAuth 2.0, grant `client_credentials`)."""
    kafka_token_scope: str | None = None
    """The scope to ask for there."""
    kafka_token_file: Path | None = None
    """For OAUTHBEARER, instead of `kafka_token_url`: a file that holds a token. It is read again for each connection."""

    @model_validator(mode="after")
    def _check_kafka(self) -> Self:
        if problem := self._address_problem() or self._copies_problem() or self._tls_problem() or self._login_problem():
            raise ValueError(problem)
        return self

    @property
    def kafka_servers(self) -> list[tuple[str, int]]:
        """Host and port of each broker that is named."""
        return [host_and_port(server) for server in (self.kafka or "").split(",") if server.strip()]

    def _address_problem(self) -> str:
        try:
            return "kafka names no broker: host:port" if self.kafka is not None and not self.kafka_servers else ""
        except ValueError as error:
            return f"kafka: {error}"

    def _copies_problem(self) -> str:
        least, copies = self.kafka_min_insync, self.kafka_replication
        if least is not None and copies is not None and least > copies:
            return f"kafka_min_insync = {least} is more than kafka_replication = {copies}, so nothing could ever be written"
        return ""

    def _tls_problem(self) -> str:
        if (self.kafka_certificate is None) != (self.kafka_key is None):
            return "kafka_certificate and kafka_key belong together: set both, or neither"
        if not self.kafka_tls and (self.kafka_ca or self.kafka_certificate):
            return "kafka_ca and kafka_certificate are for TLS: set kafka_tls = true, or remove them"
        return ""

    def _login_problem(self) -> str:
        mechanism, user = self.kafka_mechanism, self.kafka_user
        if mechanism is None:
            given = [name for name in ("kafka_user", "kafka_token_url", "kafka_token_file") if getattr(self, name)]
            return f"{given[0]} is for a sign-in: set kafka_mechanism, or remove it" if given else ""
        if not self.kafka_tls and not all(is_loopback(host) for host, _ in self.kafka_servers):
            return f"kafka_mechanism = {mechanism} without TLS shows its secret to the network: set kafka_tls = true"
        if mechanism == OAUTHBEARER:
            return self._token_problem()
        return "" if user else f"kafka_mechanism = {mechanism} needs kafka_user"

    def _token_problem(self) -> str:
        url = self.kafka_token_url
        if (url is None) == (self.kafka_token_file is None):
            return "kafka_mechanism = OAUTHBEARER needs its token from kafka_token_url or from kafka_token_file: set one of them"
        if url is not None and not self.kafka_user:
            return "kafka_token_url needs kafka_user, which is the client's id there"
        if url is not None and not url.startswith("https://"):
            return "kafka_token_url begins with https://, because the client's secret is sent there"
        return ""
