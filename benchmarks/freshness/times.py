"""The moments of a finished run, for `benchmarks.freshness`: from its tables, its log, its weight store, its clients."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, and_, func, select

from commands.audit import read_clients
from contracts.assignments import LIVE
from contracts.event_log import EventLog
from contracts.ids import sample_key
from contracts.ledger import learned_signals
from contracts.records import Episode, decode
from contracts.tables import assignment_change, outcome, received_signal, score, signal
from contracts.topics import EPISODES
from runtime.settings import Settings
from weights.stores.opening import open_weight_store

_PAGE = 1000


class Learned(NamedTuple):
    """One signal that a version contains. Times are UTC epoch seconds, each by the clock of the process that acted."""

    received_at: float
    closed_at: float
    scored_at: float
    trained_at: float
    version: int
    """The first version that contains it."""


class Times(NamedTuple):
    """What a run left behind. `live` and `answers` are (time, version), ascending."""

    learned: list[Learned]
    num_signals: int
    created: dict[int, float]
    lineage: dict[int, frozenset[int]]
    """A version and all it descends from."""
    live: list[tuple[float, int]]
    answers: list[tuple[float, int]]

    @property
    def num_live(self) -> int:
        """Versions that were live at some time."""
        return len({version for _, version in self.live})


def read_times(settings: Settings, clients: Path) -> Times:
    """Everything that `follow` needs.

    Raises:
        InvalidSettings: the clients' list cannot be read.
        Unavailable: database or log cannot be read.
    """
    answers = sorted(
        (float(item["at"]), int(item["version"])) for item in read_clients(clients) if item["kind"] == "generation"
    )
    store = open_weight_store(settings)
    manifests = [store.manifest(settings.policy, version) for version in store.versions(settings.policy)]
    lineage: dict[int, frozenset[int]] = {}
    for manifest in manifests:  # ascending, so the parent is there
        lineage[manifest.version] = lineage.get(manifest.parent or 0, frozenset()) | {manifest.version}
    log = settings.event_log()
    closed = _closed(log)
    log.close()
    database = settings.database()
    with database.snapshot() as connection:
        learned = _learned(connection, closed)
        num_signals = connection.execute(select(func.count()).select_from(received_signal)).scalar_one()
        live = _live(connection, settings.policy)
    database.close()
    created = {manifest.version: manifest.created_at for manifest in manifests}
    return Times(learned, num_signals, created, lineage, live, answers)


def _closed(log: EventLog) -> dict[tuple[str, int], float]:
    """Sample key and revision to the moment its episode was closed; the log may hold it twice."""
    closed: dict[tuple[str, int], float] = {}
    for partition, end in log.ends(EPISODES).items():
        offset = 0
        while offset < end and (records := log.read(EPISODES, partition, offset, _PAGE)):
            for record in records:
                episode = decode(Episode, record.value)
                closed.setdefault((episode.key, episode.revision), episode.closed_at)
            offset = records[-1].offset + 1
    return closed


def _learned(connection: Connection, closed: dict[tuple[str, int], float]) -> list[Learned]:
    versions = learned_signals(connection)
    scored = {(row.key, row.revision): row.at for row in connection.execute(select(score))}
    # The trainer says it again after every checkpoint and start: the first time is when it was learned.
    trained = {
        (row.key, row.revision): row.at
        for row in connection.execute(
            select(outcome.c.key, outcome.c.revision, func.min(outcome.c.at).label("at"))
            .where(outcome.c.state == "trained")
            .group_by(outcome.c.key, outcome.c.revision)
        )
    }
    received = connection.execute(
        select(signal.c.id, signal.c.completion_id, signal.c.choice, signal.c.revision, received_signal.c.received_at)
        .join(received_signal, and_(received_signal.c.tenant == signal.c.tenant, received_signal.c.id == signal.c.id))
        .where(signal.c.revision.is_not(None))
    )
    learned = []
    for row in received:
        place = (sample_key(row.completion_id, row.choice), row.revision)
        # A sample trained at a later revision holds the signal too; it is not followed, its own revision has no time.
        if row.id in versions and place in closed and place in scored and place in trained:
            times = (row.received_at, closed[place], scored[place], trained[place])
            learned.append(Learned(*times, versions[row.id]))
    return learned


def _live(connection: Connection, policy: str) -> list[tuple[float, int]]:
    change = assignment_change.c
    rows = connection.execute(
        select(change.at, change.version)
        .where(change.policy == policy, change.arm == LIVE, change.version.is_not(None))
        .order_by(change.epoch)
    )
    return [(row.at, row.version) for row in rows]
