"""Starts the threads of the webhooks of a home."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from pipelines.release.webhooks.sending import make_client
from pipelines.release.webhooks.settings import WebhookSettings
from pipelines.release.webhooks.signing import read_secret
from pipelines.release.webhooks.teller import WebhookTeller
from runtime.settings import Settings


def tellers(
    settings: Settings, webhooks: WebhookSettings, clock: Callable[[], float]
) -> Iterator[Callable[[threading.Event], None]]:
    """A function for each URL, which tells it until an event is set. Without URLs no secret is made.

    Raises:
        InvalidSettings: there is no usable secret.
    """
    secret = read_secret(settings.home) if webhooks.urls else b""
    for url in webhooks.urls:
        yield WebhookTeller(
            settings.database(),
            policy=settings.policy,
            run=settings.run,
            to=webhooks.signed(url, secret),
            client=make_client(),
            clock=clock,
        ).run
