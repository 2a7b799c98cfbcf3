"""One broker that speaks TLS on several ports: each asks for something else, or shows another certificate."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.admin import UserScramCredentialUpsertion

from tests.worlds.processes import free_port
from tests.worlds.servers.authority import Authority
from tests.worlds.servers.tokens import AUDIENCE, TokenIssuer

_ROOT = Path(__file__).parent.parent.parent.parent
_SCRIPT = _ROOT / "deploy" / "services"
_JARS = Path(os.environ.get("MILLRACE_SERVICES", _ROOT / "runs" / "services")).resolve() / "kafka" / "lib"
USER, PASSWORD = "alice", "a password, with = and %"
_NAMES = ("TLS", "MUTUAL", "LOGIN", "TOKEN", "EXPIRED", "OTHER", "BARE")
_KINDS = dict.fromkeys(_NAMES, "SSL") | {
    "LOGIN": "SASL_SSL",
    "TOKEN": "SASL_SSL",
    "BARE": "SASL_PLAINTEXT",
    "PLAINTEXT": "PLAINTEXT",
}
_MODULES = "org.apache.kafka.common.security"


class TlsBroker:
    """See the module. Started by `a_broker`."""

    def __init__(self, folder: Path, authority: Authority, issuer: TokenIssuer) -> None:
        self.folder = folder
        self._issuer = issuer
        ports = {name: free_port() for name in ("KAFKA", "CONTROLLER", "POSTGRES", "REDIS", "S3")}
        (folder / "ports").write_text("".join(f"{name}_PORT={port}\n" for name, port in ports.items()))
        (folder / "kafka").mkdir()
        if _JARS.is_dir():
            (folder / "kafka" / "lib").symlink_to(_JARS)
        places = {name: f"127.0.0.1:{free_port()}" for name in _NAMES}
        self.plain = f"127.0.0.1:{ports['KAFKA']}"
        self.places = {"PLAINTEXT": self.plain, **places}
        more = _properties(self.places, f"127.0.0.1:{ports['CONTROLLER']}", authority, issuer)
        (folder / "kafka" / "more.properties").write_text("".join(f"{key}={value}\n" for key, value in more.items()))

    def start(self) -> None:
        """Start, wait until it answers, and make its user."""
        self._run("start")
        admin = KafkaAdminClient(bootstrap_servers=self.plain)
        made = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(USER, "SCRAM-SHA-512", PASSWORD)])
        admin.close()
        assert made == {USER: None}

    def stop(self) -> None:
        self._run("stop")

    def _run(self, verb: str) -> None:
        # Brokers fetch keys from no address that was not allowed at their start.
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._issuer.keys.as_uri()}"
        done = subprocess.run(  # noqa: S603 our own script
            [_SCRIPT, verb, "kafka"],
            env=os.environ | {"MILLRACE_SERVICES": str(self.folder), "JDK_JAVA_OPTIONS": allowed},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def _properties(places: dict[str, str], controller: str, authority: Authority, issuer: TokenIssuer) -> dict[str, str]:
    listeners = ",".join(f"{name}://{place}" for name, place in places.items())
    found = {
        "listeners": f"{listeners},CONTROLLER://{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in _KINDS.items())
        + ",CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.truststore.location": str(authority.file),
        "listener.name.login.sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN",
        "listener.name.login.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        "listener.name.login.plain.sasl.jaas.config": (
            f'{_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        ),
        "listener.name.bare.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.bare.scram-sha-512.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;",
        "listener.name.token.sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.token.oauthbearer.sasl.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required;",
        "listener.name.token.oauthbearer.sasl.server.callback.handler.class": (
            f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
        ),
        # The default validator of Kafka 4.1 reads a token without checking its signature, issuer or audience.
        "listener.name.token.sasl.oauthbearer.jwt.validator.class": f"{_MODULES}.oauthbearer.BrokerJwtValidator",
        "listener.name.token.sasl.oauthbearer.jwks.endpoint.url": issuer.keys.as_uri(),
        "listener.name.token.sasl.oauthbearer.expected.audience": AUDIENCE,
        "listener.name.token.sasl.oauthbearer.expected.issuer": issuer.name,
    }
    shown = dict.fromkeys(("TLS", "MUTUAL", "LOGIN", "TOKEN"), authority.issue("broker"))
    shown["EXPIRED"] = authority.issue("expired", since=-30.0, days=29.0)
    shown["OTHER"] = authority.issue("other", ("kafka.example.org",))
    for name, issued in shown.items():
        found[f"listener.name.{name.lower()}.ssl.keystore.type"] = "PEM"
        found[f"listener.name.{name.lower()}.ssl.keystore.location"] = str(issued.both)
    return found


@contextmanager
def a_broker(authority: Authority, issuer: TokenIssuer) -> Iterator[TlsBroker]:
    """A started broker, which is stopped and forgotten at the end of the block."""
    folder = Path(tempfile.mkdtemp(prefix="millrace-tls-"))
    broker = TlsBroker(folder, authority, issuer)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(folder)
