"""Expected values of silent answers, and the counts behind them, for one batch of the reward worker.

In: stored counts, and each revision after its vote was weighed. Out: the value of a silent one, and counts to add, in the worker's
transaction. Counts are only added to, so replicas need no order. Each answer is counted once, at its first revision. A reaction
counts as long as the newest revision has it: a revision with another one, or with none, subtracts the one before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from contracts.tasks import Task
from rewards.signals import silence
from rewards.signals.repository import add_heard, add_responses, heard_since, responses_of
from rewards.signals.votes import ScoredSample, was_asked
from rewards.sums import Sums


def expects(task: Task) -> bool:
    """Whether silence about an answer gets a value from reactions to others."""
    return task.silence == "expected"


def longest_window(task: Task) -> float:
    """Seconds until the last signal of an answer may come."""
    return max(task.window_seconds, *(rule.window_seconds or 0.0 for rule in task.signals.values()))


class Expectations:
    """See the module docstring; one for each batch."""

    def __init__(self, connection: Connection, tasks: Mapping[str, Task], items: Sequence[ScoredSample]) -> None:
        self._tasks = tasks
        self._items = [item for item in items if expects(tasks[item.task])]
        self._tallies: dict[str, dict[tuple[int, int], silence.Tally]] = {}
        self._responses: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
        self._added: dict[silence.HeardKey, silence.Tally] = defaultdict(silence.Tally)
        self._heard: dict[tuple[str, int, int], silence.Tally] = defaultdict(silence.Tally)
        if self._items:
            self._read(connection)

    def of(self, item: ScoredSample) -> silence.Expected | None:
        """What silence about this answer is worth; None if that is unknown."""
        if item.grade is None or not expects(self._tasks[item.task]):
            return None
        return silence.expected_of(
            self._tallies[item.task], silence.bucket_of(item.grade), self._responses.get((item.task, item.version), {})
        )

    def count(self, item: ScoredSample, earlier: str, said: float | None) -> str:
        """Count a revision with reaction `said` (a reward, or None). `earlier` is the previous evidence; returns the new one."""
        if not expects(self._tasks[item.task]):
            return earlier
        if item.revision == 1 and item.grade is not None:
            self._add(item, silence.bucket_of(item.grade), silence.Tally(1))
        before = silence.read_evidence(earlier)
        if before is not None:
            self._add(item, before.bucket, silence.Tally(0, -1, -before.value), before.task_hash)
        if item.grade is None or said is None:
            return ""
        now = silence.SilenceEvidence(self._tasks[item.task].hash, silence.bucket_of(item.grade), said)
        self._add(item, now.bucket, silence.Tally(0, 1, said))
        return str(now)

    def keep(self, connection: Connection) -> None:
        """Store the counts of this batch."""
        add_heard(connection, {place: tally for place, tally in self._added.items() if any(tally)})
        responses = {of: Sums(*tally[:2]) for of, tally in self._heard.items() if any(tally[:2])}
        add_responses(connection, responses)

    def _add(self, item: ScoredSample, bucket: int, tally: silence.Tally, task_hash: str = "") -> None:
        asked = int(was_asked(item))
        task_hash = task_hash or self._tasks[item.task].hash
        place = silence.HeardKey(item.task, task_hash, silence.cohort_of(item.finished_at), bucket, asked)
        self._added[place] = self._added[place].plus(tally)
        of_version = (item.task, item.version, asked)
        self._heard[of_version] = self._heard[of_version].plus(tally)

    def _read(self, connection: Connection) -> None:
        for name in {item.task for item in self._items}:
            at = max(item.closed_at for item in self._items if item.task == name)
            task = self._tasks[name]
            first = silence.first_cohort(at, longest_window(task))
            self._tallies[name] = silence.newest_of(
                heard_since(connection, name, task.hash, first, silence.cohort_of(at))
            )
        self._responses = responses_of(connection, {(item.task, item.version) for item in self._items})
