"""The monitors of a rewards worker.

In: scored samples, inside the worker's transaction. Out: sums by (task, version, cluster, metric), and every ten seconds alarms: a row,
a gauge and a line in the log. Waits for: nothing. Only users' requests count: others have other prompts, which look like new habits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import structlog
from sqlalchemy import Connection

from contracts.tasks import Task
from rewards.monitors.alarms import NUM_CLUSTERS, Alarm, alarms_of, worst_cluster
from rewards.monitors.features import Measure, WatchedSample
from rewards.monitors.rules import BY_CLUSTER, RULES, SHARES
from rewards.repository import BehaviourKey, add_alarms, add_behaviour, behaviour_since, newest_version, raised_since
from rewards.sums import Sums
from runtime.metrics import BEHAVIOUR_ALARMS, NULL_SHARE

LOOK_SECONDS = 10.0
VERSIONS_BACK = 32
"""Number of newest versions whose sums are read."""
VERSIONS_TESTED = 4
"""Number of newest versions that are tested, beside those that had an answer since the last look."""
RINGS_SECONDS = 3600.0
"""How long the gauge shows an alarm. Each later version with the same habit raises its own."""
MIN_NULLS_NUM = 100
"""Samples that are needed to show a share of nulls."""
OTHER = "other"
"""The cluster that takes all prompts once there are `NUM_CLUSTERS` clusters."""
_LONGEST_CLUSTER = 64

log = structlog.get_logger()


class Monitors:
    """Counts behaviour and raises alarms, for every task of a worker."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self._measures = {name: Measure(task) for name, task in tasks.items()}
        self._clusters: dict[str, set[str]] = defaultdict(set)
        self._heard = set[tuple[str, int]]()
        """(task, version) of the answers since the last look: live and the canary may be much older than the newest version."""
        self._looked_at = float("-inf")

    def note(self, connection: Connection, noted: Sequence[WatchedSample]) -> None:
        """Add a batch of newly scored samples. Call it last, because it locks rows that replicas share."""
        sums: dict[BehaviourKey, list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
        counts: dict[tuple[str, int, str], int] = defaultdict(int)
        for sample in noted:
            if sample.purpose != "user" or sample.version < 0 or sample.task not in self._measures:
                continue
            task, version, cluster = sample.task, sample.version, self._known(sample.task, sample.cluster)
            found = self._measures[task](sample)
            for metric, value in found.items():
                _add(sums[task, version, "", metric], value)
            if sample.revision > 1:
                continue
            counts[task, version, ""] += 1
            if cluster:
                counts[task, version, cluster] += 1
                for metric in BY_CLUSTER:
                    if metric in found:
                        _add(sums[task, version, cluster, metric], found[metric])
        for (task, version, cluster), num in counts.items():
            for metric in BY_CLUSTER if cluster else SHARES:
                sums[task, version, cluster, metric][0] = num
        self._heard.update((task, version) for task, version, _ in counts)
        add_behaviour(connection, {place: Sums(int(num), *rest) for place, (num, *rest) in sums.items()})

    def tick(self, connection: Connection, now: float) -> None:
        """Look for alarms, unless the last look was less than `LOOK_SECONDS` ago."""
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        for task in self._measures:
            newest = newest_version(connection, task)
            if newest is not None:
                self._look(connection, task, newest, now)
        self._heard.clear()

    def _look(self, connection: Connection, task: str, newest: int, now: float) -> None:
        oldest = newest - VERSIONS_BACK + 1
        versions, raised = behaviour_since(connection, task, oldest), raised_since(connection, task, oldest)
        heard = {version for name, version in self._heard if name == task}
        for version in sorted(heard & versions.keys() | {*sorted(versions)[-VERSIONS_TESTED:]}):
            alarms = alarms_of(versions, version, raised)
            add_alarms(connection, [{"task": task, "at": now, **found._asdict()} for found in alarms])
            raised |= {(found.name, version, found.cluster): now for found in alarms}
            for found in alarms:
                log.warning("behaviour alarm", task=task, name=found.name, reason=in_words(found))
        ringing = [name for (name, _, _), at in raised.items() if now - at < RINGS_SECONDS]
        for name in {*RULES, *(name for name, _, _ in raised)}:
            BEHAVIOUR_ALARMS.labels(task, name).set(ringing.count(name))
        now_live = versions[newest]
        overall, worst = now_live.get(("", "null"), Sums()), worst_cluster(now_live, "null", MIN_NULLS_NUM)
        if overall.num >= MIN_NULLS_NUM:
            NULL_SHARE.labels(task, "all").set(overall.mean)
            NULL_SHARE.labels(task, "worst cluster").set(worst[1].mean if worst else overall.mean)

    def _known(self, task: str, cluster: str) -> str:
        """The name that a cluster is counted under; this bounds the number of rows."""
        known, cluster = self._clusters[task], cluster[:_LONGEST_CLUSTER]
        if cluster in known or not cluster:
            return cluster
        if len(known) >= NUM_CLUSTERS - 1:
            return OTHER
        known.add(cluster)
        return cluster


def in_words(alarm: Alarm) -> str:
    """The alarm as a sentence for operators."""
    details = alarm.details
    where = f" on prompts of cluster {alarm.cluster!r}" if alarm.cluster else ""
    now = f"version {alarm.version}{where}: {alarm.name}, {details['words']}: {details['mean']:.3g}"
    if details["test"] == "line":
        return f"{now} of {details['num']} samples, above the line of {details['line']:g}"
    first, last = details["versions"]
    before = f"version {first}" if first == last else f"versions {first} to {last}"
    return (
        f"{now} over {details['num']} samples; {details['reference']:.3g} over {details['reference_num']} of {before}"
    )


def _add(sums: list[float], value: float) -> None:
    sums[0] += 1
    sums[1] += value
    sums[2] += value * value
