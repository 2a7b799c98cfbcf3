"""Whether servers that are followed compute with the weights that were published. In: the rows of replicas. Out: figures of summary.json.

Waits for: the store and the servers, each of which makes no tokens while it is asked. The version is fetched and decoded anew, so a
fault in the file that the server was given would be found too.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx

from contracts.engines import EngineReplica, read_replicas
from engines.following.driver import WeightDifference
from engines.following.process import HostCopy
from engines.registry import FOLLOWED, followed_of
from runtime.engine_key import authorization, engine_key
from runtime.settings import Settings
from weights.replica.replica import Replica
from weights.stores.opening import open_weight_store

_CALL_SECONDS = 120.0


def compare_engines(settings: Settings) -> dict[str, Any]:
    """`weights_exact`, and `weights` with what was compared of each server; empty without such a server.

    Raises:
        Unavailable: a server or the store is away.
    """
    database = settings.database()
    with database.snapshot() as connection:
        rows = [row for row in read_replicas(connection, settings.policy) if row.kind in FOLLOWED]
    database.close()
    if not rows:
        return {}
    serving = [row for row in rows if row.is_fresh(time.time()) and row.status == "serving"]
    folder = settings.home / "compared"
    folder.mkdir(parents=True, exist_ok=True)
    copy = HostCopy(Replica(folder / "replica", open_weight_store(settings), settings.policy), settings.run)
    try:
        found = {row.name: _compare(settings, row, copy, folder) for row in serving}
    finally:
        copy.close()
    differences = [difference for versions in found.values() for difference in versions.values()]
    # A server that does not serve is not known to be right.
    is_exact = len(serving) == len(rows) and all(difference.is_exact for difference in differences)
    return {
        "weights_exact": is_exact,
        "weights": {
            name: {f"v{version}": difference._asdict() for version, difference in versions.items()}
            for name, versions in found.items()
        },
    }


def _compare(settings: Settings, row: EngineReplica, copy: HostCopy, folder: Path) -> dict[int, WeightDifference]:
    with httpx.Client(
        base_url=row.url, headers=authorization(engine_key(settings.home)), timeout=_CALL_SECONDS
    ) as client:
        driver = followed_of(row.kind).drive(client)
        # Under adapters the base must be version 0, whatever the arms have; the adapters themselves were probed when they were loaded.
        versions = {0} if "adapters" in row.abilities else set(row.slots.values()) - {None}
        return {
            version: driver.compare(copy.file_of(version, None, settings.run, folder))
            for version in versions
            if version is not None
        }
