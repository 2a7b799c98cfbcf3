"""Redis with TLS and a password: what fits shares its state, and what does not is refused by name."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from runtime.replicas.on_redis import connect
from runtime.replicas.redis_connection import redis_refusal
from runtime.secret_values import REDIS_PASSWORD
from tests.unit.services.serving import wait_until
from tests.worlds.processes import free_port
from tests.worlds.servers.authority import Authority, Issued

pytestmark = pytest.mark.services
PASSWORD = "a password, with / and %"  # noqa: S105 of this test's own servers


@contextmanager
def a_redis(folder: Path, authority: Authority, issued: Issued, *more: str) -> Iterator[int]:
    """Its port for TLS."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("no redis-server: run make services")
    port = free_port()
    command = [
        program,
        "--port",
        "0",
        "--tls-port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        str(folder),
    ]
    command += ["--tls-cert-file", str(issued.certificate), "--tls-key-file", str(issued.key)]
    command += ["--tls-ca-cert-file", str(authority.file), "--tls-auth-clients", "no", "--requirepass", PASSWORD, *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 our own command
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, b"")
        assert any(b"Ready to accept connections" in line for line in lines)
        yield port
    finally:
        process.terminate()
        process.communicate()


@pytest.fixture(scope="module")
def ports(folder: Path, authority: Authority) -> Iterator[dict[str, int]]:
    with ExitStack() as stack:
        good = stack.enter_context(a_redis(folder, authority, authority.issue("redis")))
        mutual = a_redis(folder, authority, authority.issue("redis-mutual"), "--tls-auth-clients", "yes")
        expired = a_redis(folder, authority, authority.issue("redis-old", since=-30.0, days=20.0))
        other = a_redis(folder, authority, authority.issue("redis-other", ("redis.example.org",)))
        found = {
            name: stack.enter_context(one) for name, one in (("mutual", mutual), ("expired", expired), ("other", other))
        }
        yield {"good": good, **found}


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REDIS_PASSWORD, PASSWORD)


async def test_replicas_share_their_limits_over_tls(ports: dict[str, int], authority: Authority) -> None:
    url = f"rediss://127.0.0.1:{ports['good']}/0?ssl_ca_certs={authority.file}"
    assert await asyncio.to_thread(redis_refusal, url) == ""
    one, two = connect(url, "t.", timeout_seconds=5.0), connect(url, "t.", timeout_seconds=5.0)
    assert (await one.limiter.allow("key", 1)).wait_seconds == 0
    assert (await two.limiter.allow("key", 1)).wait_seconds > 0, "the other replica took it"
    heard: list[bool] = []
    two.bell.listen("moved", lambda: heard.append(True))
    await asyncio.to_thread(wait_until, lambda: bool(heard), 20.0)
    for replica in (one, two):
        await replica.aclose()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("rediss://127.0.0.1:{expired}/0?ssl_ca_certs={authority}", "expired on .* UTC: renew it there"),
        ("rediss://127.0.0.1:{other}/0?ssl_ca_certs={authority}", r"not for 127\.0\.0\.1, but for redis\.example\.org"),
        ("rediss://127.0.0.1:{good}/0?ssl_ca_certs={stranger}", "trusts the issuer .*ssl_ca_certs of `redis`"),
        ("rediss://127.0.0.1:{good}/0?ssl_ca_certs=/none.pem", r"ssl_ca_certs in `redis`: /none\.pem cannot be read"),
        ("rediss://127.0.0.1:{good}/0", "trusts the issuer"),
        ("rediss://127.0.0.1:{mutual}/0?ssl_ca_certs={authority}", "set ssl_certfile and ssl_keyfile in `redis`"),
        ("redis://127.0.0.1:{good}/0", "speaks TLS: write rediss://"),
        ("rediss://:guess@127.0.0.1:{good}/0?ssl_ca_certs={authority}", "refuses this sign-in .*MILLRACE_REDIS_PASSWORD"),
        ("rediss://bob@127.0.0.1:{good}/0?ssl_ca_certs={authority}", "refuses this sign-in"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(
    ports: dict[str, int], authority: Authority, stranger: Authority, url: str, says: str
) -> None:
    found = redis_refusal(url.format(**ports, authority=authority.file, stranger=stranger.file))
    assert re.search(says, found), found


async def test_nothing_is_shared_unencrypted_or_with_the_wrong_server(
    ports: dict[str, int], stranger: Authority
) -> None:
    for url in (
        f"redis://127.0.0.1:{ports['good']}/0",
        f"rediss://127.0.0.1:{ports['good']}/0?ssl_ca_certs={stranger.file}",
    ):
        replica = connect(url, "t.", timeout_seconds=5.0)
        await replica.sessions.write({"a": b"1"}, 60.0)
        assert await replica.sessions.read(["a"]) == [None]
        await replica.aclose()
