"""One connection to a broker by hand, up to its first answer, to say by name why it does not let this client in.

The client tries again and again, and tells only that time is up. In: an address and the access. Out: nothing, or `LogRefused`. Waits for: the
brokers, each for a few seconds per answer.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any

from kafka.errors import KafkaError, for_code
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from contracts.errors import LogRefused
from runtime.certificates import certificate_of, refusal_in_words
from runtime.kafka_settings import OAUTHBEARER
from runtime.log.kafka.access import Access

_ALERT, _TLS_MAJOR = 21, 3
"""How a TLS server begins when it refuses: the type of the record, and the protocol."""


def require_sign_in(servers: list[tuple[str, int]], access: Access, seconds: float) -> None:
    """Return when a broker lets this client in, or none can be reached; each is waited for so many `seconds` per answer.

    Raises LogRefused: the brokers that answer refuse; names what the first of them refuses, and what to do; InvalidSettings: a file of the
    settings cannot be used.
    """
    configs = access.configs()
    refused: LogRefused | None = None
    for host, port in servers:
        try:
            _sign_in((host, port), access, configs, seconds)
        except LogRefused as error:
            refused = refused or error
        except OSError:
            continue  # the client waits for it, and says so
        else:
            return
    if refused is not None:
        raise refused


def _sign_in(place: tuple[str, int], access: Access, configs: dict[str, Any], seconds: float) -> None:
    """Raises LogRefused, or OSError: it cannot be reached."""
    host, port = place
    server = f"Kafka at {host}:{port}"
    context = access.context() if access.uses_tls else None
    with socket.create_connection(place, seconds) as plain:
        try:
            stream = plain if context is None else context.wrap_socket(plain, server_hostname=host)
            with stream:
                wire = _Wire(stream, server, is_plain=context is None, signs_in="sasl_mechanism" in configs)
                if "sasl_mechanism" in configs:
                    _authenticate(wire, host, configs)
                wire.ask(MetadataRequest(topics=[], version=4))
        except ssl.SSLError as error:
            shown = None
            with suppress(OSError, ValueError):
                shown = certificate_of(host, port, seconds)
            code, says = refusal_in_words(error, server, host, shown, "kafka_ca")
            if code == "client_certificate":
                says = access.own_certificate_problem() or says
            raise LogRefused(says, reason=code) from error


def _authenticate(wire: _Wire, host: str, configs: dict[str, Any]) -> None:
    name = configs["sasl_mechanism"]
    answer = wire.ask(SaslHandshakeRequest(mechanism=name, version=1))
    if name not in answer.mechanisms:
        offered = ", ".join(answer.mechanisms) or "none"
        raise LogRefused(
            f"{wire.server} does not offer kafka_mechanism = {name}: it offers {offered}. Set one of these, or enable {name} there",
            reason="wrong_mechanism",
        ) from for_code(answer.error_code)()
    mechanism = get_sasl_mechanism(name)(host=host, **configs)
    while not mechanism.is_done():
        answer = wire.ask(SaslAuthenticateRequest(mechanism.auth_bytes(), version=1))
        if answer.error_code:
            raise _wrong_login(wire.server, name, answer.error_message or for_code(answer.error_code).__name__)
        if name == OAUTHBEARER and answer.auth_bytes:  # RFC 7628: a refusal is an answer like any other
            raise _wrong_login(wire.server, name, answer.auth_bytes.decode(errors="replace"))
        mechanism.receive(answer.auth_bytes)


def _wrong_login(server: str, name: str, says: str) -> LogRefused:
    remedy = _CHECK_TOKEN if name == OAUTHBEARER else _CHECK_PASSWORD
    return LogRefused(f"{server} refuses this sign-in with {name} ({says}): {remedy}", reason="wrong_login")


_CHECK_PASSWORD = "check kafka_user and its password in MILLRACE_KAFKA_PASSWORD"  # noqa: S105 a remedy
_CHECK_TOKEN = (
    "check that the token has not expired, and that its issuer and audience are those that the broker expects"  # noqa: S105 as above
)


class _Wire:
    """Requests and answers over a blocking socket."""

    def __init__(self, stream: socket.socket, server: str, *, is_plain: bool, signs_in: bool) -> None:
        self.server = server
        self._stream = stream
        self._is_plain = is_plain
        self._signs_in = signs_in
        self._protocol = KafkaProtocol(client_id="millrace")

    def ask(self, request: Any) -> Any:
        """The answer. Raises LogRefused if the broker hangs up, SSLError, or OSError."""
        self._protocol.send_request(request)
        self._stream.sendall(self._protocol.send_bytes())
        while True:
            try:
                received = self._stream.recv(65536)
            except ConnectionResetError:
                received = b""
            if self._is_plain and received[:2] == bytes((_ALERT, _TLS_MAJOR)):
                raise LogRefused(
                    f"{self.server} speaks TLS there: set kafka_tls = true, or name its other port", reason="tls_wanted"
                )
            if not received:
                raise self._hung_up()
            try:
                answers = self._protocol.receive_bytes(received)
            except KafkaError as error:
                raise LogRefused(
                    f"{self.server} does not speak Kafka's protocol there ({error}): check `kafka`", reason="no_kafka"
                ) from error
            if answers:
                return answers[0][1]

    def _hung_up(self) -> LogRefused:
        wanted = [] if self._signs_in else ["a sign-in (kafka_mechanism)"]
        wanted += ["TLS (kafka_tls = true)"] if self._is_plain else []
        maybe = f": it may ask for {' or for '.join(wanted)}" if wanted else ""
        return LogRefused(f"{self.server} hangs up without an answer{maybe}; its log says why", reason="hung_up")
