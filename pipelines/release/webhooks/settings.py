"""The section [webhooks]: who hears about every move."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx
from pydantic import Field, field_validator

from pipelines.release.webhooks.sending import SignedUrl
from runtime.settings import Section

_MAX_URL = 2000


class WebhookSettings(Section):
    """Who hears from release about moves of arms, holds, and trains that ended."""

    urls: tuple[str, ...] = Field(default=(), max_length=16)
    """Each gets every message, `http://` or `https://`, without a password in it; at most 16."""
    private_hosts: tuple[str, ...] = Field(default=(), max_length=16)
    """Hosts of these URLs whose addresses may be loopback, link-local or private. All others must be public."""

    def signed(self, url: str, secret: bytes) -> SignedUrl:
        """Where messages for a URL go."""
        return SignedUrl(
            url, secret, may_be_private=httpx.URL(url).host in {host.strip("[]").lower() for host in self.private_hosts}
        )

    @field_validator("urls")
    @classmethod
    def _usable(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            _check(url)
        if len(set(urls)) != len(urls):
            raise ValueError("a URL is named twice")
        return urls


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = (
            parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0 and bool(httpx.URL(url).host)
        )
    except (ValueError, httpx.InvalidURL):
        usable = False
    if not usable or len(url) > _MAX_URL or not url.isascii() or any(letter.isspace() for letter in url):
        raise ValueError(f"{url[:100]!r} is not a URL that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL has a name or password: messages are signed, so leave them out")
