"""One try to hand a message to a URL. In: a message. Out: whether it was accepted. Waits: for the answer's status, at most 10 s a step.

Redirects are not followed: the URL is the operator's, and the place that it names next is not. The answer's body is not read. Only public
addresses are reached, and hosts that the operator names. The client connects to an address that was looked at, not to the name: a second
look at the name could lead elsewhere.
"""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address
from typing import Literal, NamedTuple
from urllib.request import getproxies, proxy_bypass

import httpx

from pipelines.release.webhooks.messages import WebhookEvent, signed_headers

SEND_SECONDS = 10.0
_GONE, _BUSY, _AWAY = 410, 429, 503
_LONGEST_WAIT = 3600.0
_OLD = (ipaddress.ip_network("::/96"), ipaddress.ip_network("fec0::/10"))
"""Forms that were given up: an IPv4 address inside, and a site's own addresses."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Fate = Literal["accepted", "gone", "failed"]
FATES: tuple[Fate, ...] = ("accepted", "gone", "failed")


class SignedUrl(NamedTuple):
    """Where messages go, and the secret that signs them."""

    url: str
    secret: bytes
    may_be_private: bool = False
    """The operator says that its host may have an address that is not public."""


class WebhookTry(NamedTuple):
    """How a try went. `gone`: the receiver wants no more messages. `wait_seconds`: how long it asks to wait."""

    fate: Fate
    says: str
    wait_seconds: float = 0.0


def make_client() -> httpx.Client:
    """The client of one URL."""
    return httpx.Client(timeout=SEND_SECONDS, follow_redirects=False, headers={"user-agent": "millrace-webhooks/1"})


def send(client: httpx.Client, to: SignedUrl, event: WebhookEvent, at: float) -> WebhookTry:
    """Send a message once. `at`: the time in the signature."""
    body = event.body
    headers = signed_headers(to.secret, event.id, at, body)
    headers["content-type"] = "application/json"
    try:
        url = httpx.URL(to.url)
        port = url.port or (443 if url.scheme == "https" else 80)
        headers["host"] = url.netloc.decode()
        if url.scheme in getproxies() and not proxy_bypass(url.host):  # the proxy decides where the name may lead
            return _post(client, url, url.host, body, headers)
        *others, last = addresses_of(url.host, port, may_be_private=to.may_be_private)
        for address in others:
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return _post(client, url, address, body, headers)
        return _post(client, url, last, body, headers)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError, NotPublic) as error:
        return WebhookTry("failed", f"{type(error).__name__}: {error}"[:300])


def _post(client: httpx.Client, url: httpx.URL, address: str, body: bytes, headers: dict[str, str]) -> WebhookTry:
    """Connect to an address; the certificate must be that of the URL's host."""
    extensions = {"sni_hostname": url.host}
    with client.stream(
        "POST", url.copy_with(host=address), content=body, headers=headers, extensions=extensions
    ) as answer:
        return _read(answer)


def _read(answer: httpx.Response) -> WebhookTry:
    says = f"{answer.status_code} {answer.reason_phrase}".strip()
    if answer.is_success:
        return WebhookTry("accepted", says)
    if answer.status_code == _GONE:
        return WebhookTry("gone", says)
    if answer.has_redirect_location:
        return WebhookTry("failed", f"{says}: redirects are not followed")
    told = answer.headers.get("retry-after", "")
    wait = float(told) if answer.status_code in {_BUSY, _AWAY} and told.isdecimal() and told.isascii() else 0.0
    return WebhookTry("failed", says, min(wait, _LONGEST_WAIT))


class NotPublic(Exception):
    """A host has an address on this machine or in a private network."""


def addresses_of(host: str, port: int, *, may_be_private: bool) -> list[str]:
    """The addresses of a host, in the order to try them.

    Raises NotPublic: one of them is loopback, link-local, private, or for another special purpose; OSError: the name has no address.
    """
    found = list(dict.fromkeys(str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
    if not may_be_private:
        for address in found:
            if not is_public(address):
                raise NotPublic(
                    f'{host} is {address}, which is not public; to allow it: [webhooks] private_hosts = ["{host}"]'
                )
    return found


def is_public(address: str) -> bool:
    """Whether an address is one of the internet, and so is the IPv4 address inside it, if there is one."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if any(ip in network for network in _OLD):
        return False
    inner = _inside(ip) if isinstance(ip, IPv6Address) else ()
    return all(one.is_global and not one.is_multicast for one in inner or (ip,))


def _inside(ip: IPv6Address) -> tuple[IPv4Address | IPv6Address, ...]:
    """The IPv4 address that stands in an IPv6 one: mapped, 6to4, Teredo, NAT64."""
    if ip.ipv4_mapped is not None:
        return (ip.ipv4_mapped,)
    if ip.sixtofour is not None:
        return ip, ip.sixtofour
    if ip.teredo is not None:
        return ip, *ip.teredo
    return (ip, IPv4Address(int(ip) & 0xFFFFFFFF)) if ip in _NAT64 else ()
