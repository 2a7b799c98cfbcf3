"""The process `sglang`: a thread per server follows its slot's assignment; one decoder for all of them."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

from runtime.settings import load_section, load_settings
from services.following.given import GivenServer
from services.following.process import Host, follow
from services.sglang.settings import SglangSettings
from weights.engines.sglang import SglangServer


def main(home: Path, stop: threading.Event) -> None:
    """Follow until `stop` is set.

    Raises:
        InvalidSettings: a setting is missing.
        NameTaken: another replica has the name of one of these.
    """
    settings, own = load_settings(home), load_section(home, "sglang", SglangSettings)
    host = Host.of(settings, "sglang", own.weights)
    followers = [
        host.follower(
            kind="sglang", name=f"{own.name}-{number + 1}", slot=slot, region=own.region or host.settings.region, server=GivenServer(url),
            drive=partial(SglangServer, base=Path(settings.base)),
        )
        for number, (slot, url) in enumerate(zip(own.slots, own.urls, strict=True))
    ]  # fmt: skip
    follow(host, followers, stop)
