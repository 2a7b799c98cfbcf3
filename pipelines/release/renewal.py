"""Signs the list of a policy's versions again while training is down, if release has the signing key.

In: the passing of time. Out: the snapshot of the versions, signed again. Waits for: nothing; a failure is tried again later.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from contracts.errors import InvalidRequest, InvalidSettings, StaleWrite, Unavailable, WeightsRefused
from runtime.database import Database
from runtime.operations import WeightStoreMetrics
from runtime.settings import Settings
from runtime.snapshot_rows import DatabaseSnapshotRows
from weights.issuer import Issuer
from weights.stores.opening import open_weight_store
from weights.versions.keys import keyring_of, signer_of, signing_key
from weights.versions.snapshot import RENEW_SECONDS

_LOOK_SECONDS = 300.0
_OVERDUE_SECONDS = 2 * RENEW_SECONDS
"""Training renews the snapshot every `RENEW_SECONDS`. If it is this old, training does not run."""
log = structlog.get_logger()


def renewal(
    settings: Settings,
    database: Database,
    policy: str,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> Callable[[], None]:
    """Returns a function to call often; it looks every five minutes. It does nothing if there is no signing key."""
    if settings.weights_unsigned or signing_key(settings.home) is None:
        return lambda: None
    measures = WeightStoreMetrics()
    store, signer = open_weight_store(settings, publishes=True, measures=measures), signer_of(settings)
    assert signer is not None  # noqa: S101 the signing key was found above
    issuer = Issuer(
        DatabaseSnapshotRows(database, policy),
        store,
        policy,
        settings.run,
        signer=signer,
        keyring=keyring_of(settings),
        clock=clock,
        accepted=lambda snapshot: measures.note_snapshot(snapshot.expires_at),
    )
    look_at = 0.0

    def look() -> None:
        nonlocal look_at
        if (now := monotonic()) < look_at:
            return
        look_at = now + _LOOK_SECONDS
        try:
            if issuer.renew(_OVERDUE_SECONDS):
                log.warning("snapshot renewed by release: training does not run", policy=policy)
        except (Unavailable, InvalidRequest, InvalidSettings, StaleWrite, WeightsRefused) as error:
            log.warning("snapshot not renewed yet", reason=error.message)

    return look
