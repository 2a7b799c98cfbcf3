"""The process `release`."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx

from contracts.settings import load_section, load_settings
from pipelines.release.releaser import Releaser
from pipelines.release.sentinels import SentinelRunner, read_sentinels
from pipelines.release.settings import ReleaseSettings


def main(home: Path, stop: threading.Event) -> None:
    """Judge candidates until `stop` is set."""
    settings = load_settings(home)
    own = load_section(home, "release", ReleaseSettings)
    sentinels = read_sentinels(own.sentinels)
    headers = {
        "Authorization": f"Bearer {(home / 'operator.key').read_text().strip()}",
        "x-millrace-purpose": "sentinel",
    }
    with httpx.Client(base_url=settings.web_url, headers=headers, timeout=60.0) as client:
        runner = SentinelRunner(
            client,
            settings.event_log(),
            policy=settings.policy,
            concurrency=own.concurrency,
            max_tokens=own.max_tokens,
            patience_seconds=own.patience_seconds,
        )
        bell = settings.passing().bell
        Releaser(settings.database(), runner, sentinels, policy=settings.policy, settings=own, bell=bell).run(stop)
        bell.close()
