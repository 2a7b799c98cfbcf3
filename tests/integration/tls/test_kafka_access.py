"""Kafka with TLS and each sign-in, against a real broker: what fits is let in, and what does not is refused by name."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from contracts.errors import InvalidSettings, LogRefused, Unavailable
from contracts.event_log import Message
from runtime.kafka_settings import KafkaSettings
from runtime.log.kafka import Access, KafkaLog
from runtime.secret_values import KAFKA_PASSWORD
from tests.worlds.servers.authority import Authority
from tests.worlds.servers.broker import PASSWORD, USER, TlsBroker
from tests.worlds.servers.services import new_prefix
from tests.worlds.servers.tokens import CLIENT, SCOPE, SECRET, TokenIssuer

pytestmark = [pytest.mark.services, pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]
SECONDS = 30.0


class Given(NamedTuple):
    """Settings and environment of a client."""

    listener: str
    settings: dict[str, Any]
    secret: str | None = None


class Cases:
    """What clients may be told."""

    def __init__(
        self, folder: Path, authority: Authority, stranger: Authority, issuer: TokenIssuer, token_url: str
    ) -> None:
        tls: dict[str, Any] = {"kafka_tls": True, "kafka_ca": authority.file}
        scram = {**tls, "kafka_mechanism": "SCRAM-SHA-512", "kafka_user": USER}
        fetched = {**tls, "kafka_mechanism": "OAUTHBEARER", "kafka_token_url": token_url, "kafka_user": CLIENT}
        fetched |= {"kafka_token_scope": SCOPE}

        def mutual(authority: Authority, name: str, *, since: float = -1.0, days: float = 90.0) -> dict[str, Any]:
            own = authority.issue(name, since=since, days=days)
            return {**tls, "kafka_certificate": own.certificate, "kafka_key": own.key}

        def token(name: str, **claims: Any) -> dict[str, Any]:
            (folder / name).write_text(issuer.token(**claims))
            return {**tls, "kafka_mechanism": "OAUTHBEARER", "kafka_token_file": folder / name}

        self.good = {
            "tls": Given("TLS", tls),
            "mutual": Given("MUTUAL", mutual(authority, "client")),
            "scram": Given("LOGIN", scram, PASSWORD),
            "scram here": Given("BARE", {"kafka_mechanism": "SCRAM-SHA-512", "kafka_user": USER}, PASSWORD),
            "plain": Given("LOGIN", {**scram, "kafka_mechanism": "PLAIN"}, PASSWORD),
            "token file": Given("TOKEN", token("token")),
            "token url": Given("TOKEN", fetched, SECRET),
        }
        past = {"iat": time.time() - 9000, "exp": time.time() - 5000}
        self.bad = {
            "expired": Given("EXPIRED", tls),
            "wrong host": Given("OTHER", tls),
            "unknown authority": Given("TLS", {**tls, "kafka_ca": stranger.file}),
            "no certificate": Given("MUTUAL", tls),
            "strange certificate": Given("MUTUAL", mutual(stranger, "strange")),
            "expired certificate": Given("MUTUAL", mutual(authority, "old", since=-30.0, days=20.0)),
            "tls where none is": Given("PLAINTEXT", tls),
            "no tls": Given("TLS", {}),
            "no sign-in": Given("LOGIN", tls),
            "no sign-in here": Given("BARE", {}),
            "sign-in where none is": Given("TLS", scram, PASSWORD),
            "another mechanism": Given("LOGIN", {**scram, "kafka_mechanism": "SCRAM-SHA-256"}, PASSWORD),
            "a password where tokens are": Given("TOKEN", scram, PASSWORD),
            "wrong password": Given("LOGIN", scram, "guess"),
            "wrong plain password": Given("LOGIN", {**scram, "kafka_mechanism": "PLAIN"}, "guess"),
            "unknown user": Given("LOGIN", {**scram, "kafka_user": "bob"}, PASSWORD),
            "expired token": Given("TOKEN", token("past", **past)),
            "token for others": Given("TOKEN", token("others", aud="others")),
            "missing token": Given("TOKEN", {**token("gone"), "kafka_token_file": folder / "none"}),
            "wrong client secret": Given("TOKEN", fetched, "guess"),
            "wrong scope": Given("TOKEN", {**fetched, "kafka_token_scope": "others"}, SECRET),
        }


@pytest.fixture(scope="module")
def cases(folder: Path, authority: Authority, stranger: Authority, issuer: TokenIssuer, token_url: str) -> Cases:
    return Cases(folder, authority, stranger, issuer, token_url)


@pytest.fixture
def open_log(
    broker: TlsBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Given], KafkaLog]]:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))  # whom this machine trusts, for the token endpoint
    made: list[KafkaLog] = []

    def open_one(given: Given, prefix: str = "access.") -> KafkaLog:
        place = broker.places[given.listener]
        environment = {} if given.secret is None else {KAFKA_PASSWORD: given.secret}
        access = Access(KafkaSettings(kafka=place, **given.settings), environment)
        made.append(KafkaLog(place, prefix=prefix, access=access, timeout=2.0))
        return made[-1]

    yield open_one
    for log in made:
        log.close()


@pytest.mark.parametrize("name", ["tls", "mutual", "scram", "scram here", "plain", "token file", "token url"])
def test_records_go_in_and_come_back(cases: Cases, open_log: Callable[..., KafkaLog], name: str) -> None:
    log, value = open_log(cases.good[name]), name.encode()
    log.create_topics()
    log.check_topics()
    log.append([Message("signals", 1, "k", value)])
    consumer = log.consumer(f"group {name}", ["signals"], lambda *_: 0)
    deadline, read = time.monotonic() + SECONDS, []
    while value not in read and time.monotonic() < deadline:
        read += [record.value for record in consumer.poll(1.0, 100)]
    assert value in read
    assert sum(log.ends("signals").values()) >= len(set(read))


@pytest.mark.parametrize(
    ("name", "reason", "says"),
    [
        ("expired", "certificate_expired", r"expired on 20\d\d-.* UTC: renew it there"),
        ("wrong host", "wrong_host_name", r"not for 127\.0\.0\.1, but for kafka\.example\.org: use one of its names"),
        ("unknown authority", "unknown_authority", r"trusts the issuer \(CN=authority\).*name .* in kafka_ca"),
        ("no certificate", "client_certificate", "set kafka_certificate and kafka_key"),
        ("strange certificate", "client_certificate", "refuses this client's certificate .* that it trusts"),
        ("expired certificate", "client_certificate", "kafka_certificate: .*old.crt expired 10 days ago: renew it"),
        ("tls where none is", "no_tls", "does not speak TLS there .*name its TLS port"),
        ("no tls", "tls_wanted", "speaks TLS there: set kafka_tls = true"),
        ("no sign-in", "hung_up", r"may ask for a sign-in \(kafka_mechanism\)"),
        ("no sign-in here", "hung_up", r"may ask for a sign-in \(kafka_mechanism\)"),
        ("sign-in where none is", "wrong_mechanism", "it offers none"),
        ("another mechanism", "wrong_mechanism", "does not offer .*SCRAM-SHA-256: it offers SCRAM-SHA-512, PLAIN. Set one"),
        ("a password where tokens are", "wrong_mechanism", "it offers OAUTHBEARER"),
        ("wrong password", "wrong_login", "check kafka_user and its password in MILLRACE_KAFKA_PASSWORD"),
        ("wrong plain password", "wrong_login", "check kafka_user and its password"),
        ("unknown user", "wrong_login", "check kafka_user and its password"),
        ("expired token", "wrong_login", "invalid_token.*check that the token has not expired"),
        ("token for others", "wrong_login", "its issuer and audience"),
        ("missing token", "no_token", "kafka_token_file: .*none cannot be read"),
        ("wrong client secret", "no_token", r"refuses millrace \(401 .*check kafka_user, its secret"),
        ("wrong scope", "no_token", r"refuses millrace \(400 .*kafka_token_scope"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(
    cases: Cases, open_log: Callable[..., KafkaLog], name: str, reason: str, says: str
) -> None:
    log = open_log(cases.bad[name], prefix="refused.")
    with pytest.raises(LogRefused) as refused:
        log.create_topics()
    assert refused.value.facts["reason"] == reason
    assert re.search(says, refused.value.message), refused.value.message


def test_a_refused_client_cannot_write_either_and_says_why(cases: Cases, open_log: Callable[..., KafkaLog]) -> None:
    log = open_log(cases.bad["wrong password"])
    with pytest.raises(Unavailable, match="refuses this sign-in"):
        log.append([Message("signals", 1, "k", b"v")])
    with pytest.raises(Unavailable, match="refuses this sign-in"):
        log.consumer("g", ["signals"], lambda *_: 0)


def test_a_renewed_certificate_is_used_without_a_restart(
    cases: Cases, open_log: Callable[..., KafkaLog], authority: Authority
) -> None:
    old = authority.issue("renewed", since=-30.0, days=20.0)
    settings = {**cases.good["tls"].settings, "kafka_certificate": old.certificate, "kafka_key": old.key}
    log = open_log(Given("MUTUAL", settings))
    with pytest.raises(LogRefused, match="expired 10 days ago"):
        log.describe()
    authority.issue("renewed")
    log.describe()


def test_a_token_is_fetched_once_for_many_connections(
    cases: Cases, open_log: Callable[..., KafkaLog], issuer: TokenIssuer
) -> None:
    log, before = open_log(cases.good["token url"]), issuer.num_given
    for _ in range(3):
        log.describe()
    assert issuer.num_given == before + 1


def test_a_secret_that_is_missing_is_a_mistake_in_the_settings(cases: Cases, open_log: Callable[..., KafkaLog]) -> None:
    given = cases.good["scram"]._replace(secret=None)
    with pytest.raises(InvalidSettings, match=r"needs the secret of alice: set MILLRACE_KAFKA_PASSWORD, or .*_FILE"):
        open_log(given).create_topics()


def test_topics_of_another_home_are_refused_before_anything_changes(
    cases: Cases, broker: TlsBroker, open_log: Callable[..., KafkaLog]
) -> None:
    prefix = new_prefix()
    log = open_log(cases.good["tls"], prefix)
    log.create_topics()
    place = broker.plain
    for changed, says in (
        ({"num_partitions": 7}, r"has 4 partitions, not 7, .* set partitions = 4 in \[millrace\]"),
        ({"replication": 3}, "has 1 replicas, and kafka_replication is 3: add replicas with .* or lower"),
        ({"min_insync": 2}, r"has min\.insync\.replicas = 1, and kafka_min_insync is 2: raise it with .* or lower"),
    ):
        other = KafkaLog(place, prefix=prefix, timeout=2.0, **changed)  # type: ignore[arg-type] # one of several numbers
        for act in (other.check_topics, other.create_topics):
            with pytest.raises(InvalidSettings, match=says):
                act()
        other.close()
    many = KafkaLog(place, prefix=new_prefix(), timeout=2.0, replication=3)
    with pytest.raises(Unavailable, match="kafka_replication = 3"):
        many.create_topics()
    assert many.describe() == {}
    many.close()
