"""Judges candidates: gate, then live, or back.

In: the arm `candidate` of the assignments. Out: a stored verdict, and `live` moved to what was accepted; after several
refusals in a row the arm `training` sends the trainer back. Waits: for a candidate that has no verdict.
"""

from __future__ import annotations

import threading

import structlog

from contracts import assignments, revocations
from contracts.assignments import CANDIDATE, LIVE, MOVED, Assignment
from contracts.database import Database
from contracts.errors import StaleWrite, Unavailable, VersionNotResident
from contracts.metrics import LIVE_VERSION, VERDICTS
from contracts.operations import step_done
from contracts.passing import Bell
from pipelines.release import repository
from pipelines.release.rules import Decision, Sentinels, judge
from pipelines.release.sentinels import SentinelFile, SentinelRunner
from pipelines.release.settings import ReleaseSettings

_LOOK_SECONDS, _RETRY_SECONDS = 0.2, 1.0

log = structlog.get_logger()


class Releaser:
    """One per policy."""

    def __init__(
        self,
        database: Database,
        runner: SentinelRunner,
        sentinels: SentinelFile,
        *,
        policy: str,
        settings: ReleaseSettings,
        bell: Bell,
    ) -> None:
        self._database = database
        self._runner = runner
        self._sentinels = sentinels
        self._policy = policy
        self._settings = settings
        self._bell = bell

    def run(self, stop: threading.Event) -> None:
        """Judge until `stop` is set."""
        while not stop.is_set():
            try:
                self.look(stop)
            except (StaleWrite, Unavailable) as error:
                # Nothing was stored: the candidate changed or could not answer. Look again.
                log.warning("not judged", reason=error.message)
                stop.wait(_RETRY_SECONDS)
            step_done()
            stop.wait(_LOOK_SECONDS)

    def look(self, stop: threading.Event) -> bool:
        """Judge what waits: the base policy first, then the candidate; False if nothing waits."""
        with self._database.snapshot() as connection:
            arms = assignments.read(connection, self._policy)
            known = repository.verdicts(connection, self._policy, self._sentinels.hash)
            revoked = revocations.read(connection, self._policy)
        judged = {verdict.version for verdict in known}
        live, candidate = arms.get(LIVE), arms.get(CANDIDATE)
        if live is not None and live.version is not None:
            LIVE_VERSION.set(live.version)
        if live is not None and live.version is not None and live.version not in judged:
            # The first live version is nobody's candidate: its accuracy is what later ones are compared with.
            self._judge(live._replace(version=None), live.version, None, stop)
            return True
        if candidate is None or candidate.version is None:
            return False
        accepted = [
            verdict.sentinels
            for verdict in known
            if verdict.accepted and verdict.sentinels.values and verdict.version not in revoked
        ]
        best = max(accepted, key=lambda sentinels: sentinels.accuracy, default=None)
        self._judge(candidate, candidate.version, best, stop)
        return True

    def _judge(self, arm: Assignment, version: int, best: Sentinels | None, stop: threading.Event) -> None:
        try:
            found = self._runner.run(self._sentinels, version, stop)
            decision = judge(found, best, self._settings.tolerance)
        except VersionNotResident as error:
            found, decision = Sentinels(version, ()), Decision(False, error.message)
        with self._database.transaction() as connection:
            repository.store(
                connection,
                self._policy,
                arm,
                found=found,
                decision=decision,
                best=best,
                sentinels_hash=self._sentinels.hash,
                refusals_before_rollback=self._settings.refusals_before_rollback,
            )
        self._bell.ring(MOVED)
        VERDICTS.labels(str(decision.accepted).lower()).inc()
        log.info("judged", version=version, accepted=decision.accepted, reason=decision.reason)
