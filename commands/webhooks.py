"""`millrace policy webhook-test`: sends a signed message to every URL of [webhooks], and says what came back."""

from __future__ import annotations

import time

from commands.options import DEFAULT_HOME, HomeOption
from contracts.errors import InvalidSettings
from pipelines.release.webhooks import repository
from pipelines.release.webhooks.messages import make_test_event, read_secret
from pipelines.release.webhooks.sending import make_client, send
from pipelines.release.webhooks.settings import WebhookSettings
from runtime.settings import load_section, load_settings
from runtime.settings_file import settings_file


def webhook_test(home: HomeOption = DEFAULT_HOME) -> int:
    """Send a test to every URL of the section webhooks. Status 1 if one does not accept it. A URL that had answered 410 is told again."""
    settings = load_settings(home)
    webhooks = load_section(home, "webhooks", WebhookSettings)
    if not webhooks.urls:
        raise InvalidSettings(f'{settings_file(home)} names no URL: write [webhooks] and urls = ["https://..."]')
    secret, event, num_failed = read_secret(home), make_test_event(settings.policy), 0
    for url in webhooks.urls:
        began = time.monotonic()
        with make_client() as client:
            tried = send(client, webhooks.signed(url, secret), event, time.time())
        print(f"{url}: {tried.fate}, {tried.says}, after {time.monotonic() - began:.2f} s")
        if tried.fate != "accepted":
            num_failed += 1
            continue
        with settings.transaction() as connection:
            repository.set_receiver_problem(connection, settings.policy, url, "")
    return int(num_failed > 0)
