"""The process of `millrace cache`."""

from __future__ import annotations

import signal
from pathlib import Path

from contracts.errors import InvalidSettings
from runtime.logs import set_up_logs
from services.cache.app import create_app
from services.cache.cache import RegionCache
from services.cache.fetch import Fetching, Upstream
from services.serving import disk_check, serve


def main(upstream: str, folder: Path, host: str, port: int, fetching: Fetching) -> None:
    """Serve a region's cache of `upstream` until SIGTERM or SIGINT. Raises InvalidSettings: URL, folder or address cannot be used."""
    set_up_logs("cache")
    source = Upstream(upstream, fetching)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidSettings(f"--folder {folder}: {error.strerror}; choose a folder that can be written") from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # uvicorn has handlers of its own, and sends the signal again at its end
    try:
        serve({"/": create_app(RegionCache(source, folder))}, {"storage": disk_check(folder)}, host, port)
    except OSError as error:
        raise InvalidSettings(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
