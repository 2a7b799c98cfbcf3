"""Webhooks reach public addresses, and hosts that the operator names."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import httpx
import pytest

from pipelines.release.webhooks.messages import make_test_event
from pipelines.release.webhooks.sending import (
    NotPublic,
    SignedUrl,
    WebhookTry,
    addresses_of,
    is_public,
    make_client,
    send,
)
from pipelines.release.webhooks.settings import WebhookSettings
from tests.worlds.release.receiver import SECRET, receiving
from tests.worlds.servers.authority import Authority


def told(to: SignedUrl, client: httpx.Client | None = None) -> WebhookTry:
    with client or make_client() as used:
        return send(used, to, make_test_event("shop"), 0.0)


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",  # noqa: S104 nobody binds it
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "169.254.169.254",
        ),
        *("192.0.2.1", "198.18.0.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
        *("::1", "::", "fe80::1", "fe80::1%lo", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1"),
        *(
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "2002:7f00:1::1",
            "2002:a00:1::",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "::7f00:1",
            "fec0::1",
        ),
    ],
)
def test_what_is_on_this_machine_or_in_a_private_network_is_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_addresses_of_the_internet_are(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0177.1", "127.1"])
def test_however_loopback_is_written_nobody_is_told(host: str) -> None:
    with receiving() as receiver:
        tried = told(SignedUrl(receiver.url.replace("127.0.0.1", host), SECRET))
        assert tried.fate == "failed"
        assert "not public" in tried.says
        assert f'private_hosts = ["{host}"]' in tried.says
        assert not receiver.posts


def test_a_host_that_the_operator_names_is_told_by_its_name() -> None:
    with receiving() as receiver:
        url = receiver.url.replace("127.0.0.1", "localhost")
        settings = WebhookSettings(urls=(url, "http://127.0.0.1/"), private_hosts=("localhost",))
        assert told(settings.signed(url, SECRET)).fate == "accepted"
        [post] = receiver.posts
        assert post.headers["host"] == httpx.URL(url).netloc.decode()
        assert not settings.signed(settings.urls[1], SECRET).may_be_private


def test_one_private_address_among_public_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    public, private = [(0, 0, 0, "", (address, 80)) for address in ("1.1.1.1", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [public, private])
    with pytest.raises(NotPublic, match=r"h is 10\.0\.0\.1"):
        addresses_of("h", 80, may_be_private=False)
    assert addresses_of("h", 80, may_be_private=True) == ["1.1.1.1", "10.0.0.1"]


def test_a_name_that_leads_nowhere_is_a_failure_like_others() -> None:
    assert told(SignedUrl("https://nobody.invalid/", SECRET)).fate == "failed"


@pytest.mark.parametrize(("host", "fate"), [("localhost", "accepted"), ("other.example", "failed")])
def test_the_certificate_is_that_of_the_name_not_of_the_address(tmp_path: Path, host: str, fate: str) -> None:
    authority = Authority(tmp_path, "own")
    issued = authority.issue("server", (host,))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate, issued.key)
    with receiving(context) as receiver:
        url = receiver.url.replace("http://127.0.0.1", "https://localhost")
        client = httpx.Client(verify=ssl.create_default_context(cafile=str(authority.file)))
        assert told(SignedUrl(url, SECRET, may_be_private=True), client).fate == fate


def test_behind_a_proxy_the_name_is_the_proxys_to_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/hook"))
        monkeypatch.setenv("no_proxy", "localhost")
        assert told(SignedUrl("http://hooks.internal/hook", SECRET)).fate == "accepted"
        assert [post.headers["host"] for post in proxy.posts] == ["hooks.internal"]
        assert told(SignedUrl("http://localhost:9/", SECRET)).fate == "failed", "no proxy for it, and not public"
        assert len(proxy.posts) == 1


@pytest.mark.parametrize("named", ["LocalHost", "localhost"])
def test_a_host_is_named_in_any_case(named: str) -> None:
    assert WebhookSettings(private_hosts=(named,)).signed("http://localhost:1/", SECRET).may_be_private
