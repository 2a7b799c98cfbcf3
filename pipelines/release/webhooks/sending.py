"""One try to hand a message to a URL. In: a message. Out: whether it was accepted. Waits: for the answer's status, at most 10 s a step.

Redirects are not followed: the URL is the operator's, and the place that it names next is not. The answer's body is not read. Only public
addresses are reached, and hosts that the operator names (`reaching.py`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal, NamedTuple

import httpx

from pipelines.release.webhooks.events import WebhookEvent
from pipelines.release.webhooks.reaching import NotPublic, addresses_of, goes_by_proxy
from pipelines.release.webhooks.signing import signed_headers

SEND_SECONDS = 10.0
_GONE, _BUSY, _AWAY = 410, 429, 503
_LONGEST_WAIT = 3600.0

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
        if goes_by_proxy(url.scheme, url.host):
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
