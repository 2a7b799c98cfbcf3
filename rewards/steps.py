"""From episodes that were graded to what is learned from them, one step after the other.

    episode ─▶ components ─▶ verdict ─▶ weight ─▶ experience
               components.py rubric.py  weight.py experience.py

Each step is a pure function of the task and the steps before. Only the weight also depends on the database:
on who voted before, how fast and how late (`signals/weighing.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from contracts.clusters import Clusters, words_of
from contracts.event_log import Message
from contracts.tasks import Task
from rewards.components import Components, components_of
from rewards.episode import UnpackedEpisode
from rewards.experience import messages_of
from rewards.rubric import RewardVerdict, verdict_of
from rewards.signals.votes import ScoredSample
from rewards.signals.weighing import Weighing, Weight
from rewards.weight import WeightedVerdict, sample_of, weighted


class ScoredEpisode(NamedTuple):
    """An episode after all steps."""

    item: UnpackedEpisode
    cluster: str
    """What the prompt is about."""
    components: Components
    verdict: RewardVerdict
    """Before it was weighted: what is stored and watched."""
    learned: WeightedVerdict
    messages: list[Message]


class ScoringSteps:
    """The steps for some tasks. Safe for one thread."""

    def __init__(self, tasks: Mapping[str, Task], weighing: Weighing) -> None:
        self._tasks = tasks
        self._weighing = weighing
        self._clusters = {name: Clusters(task.curation.topics) for name, task in tasks.items()}

    def run(self, connection: Connection, items: Sequence[UnpackedEpisode], at: float) -> list[ScoredEpisode]:
        """Score episodes of known tasks, each revision once, in their order. `at`: UTC epoch seconds."""
        tasks = [self._tasks[item.turn.task] for item in items]
        clusters = [self._clusters[item.turn.task].of(words_of(item.body.messages)) for item in items]
        components = list(map(components_of, tasks, items))
        verdicts = [
            verdict_of(task, made, off_line=item.episode.off_line)
            for task, made, item in zip(tasks, components, items, strict=True)
        ]
        weights = self._weights(connection, items, map(sample_of, tasks, items, components, verdicts, clusters))
        learned = list(map(weighted, tasks, components, verdicts, weights))
        messages = [messages_of(*step, at) for step in zip(tasks, items, learned, strict=True)]
        return list(map(ScoredEpisode, items, clusters, components, verdicts, learned, messages))

    def _weights(
        self, connection: Connection, items: Sequence[UnpackedEpisode], samples: Iterable[ScoredSample]
    ) -> list[Weight]:
        """The weight of each. Only answers to users are weighed; the others count fully."""
        pairs = [(sample, item.turn.purpose == "user") for item, sample in zip(items, samples, strict=True)]
        weighed = iter(self._weighing.weigh(connection, [sample for sample, is_user in pairs if is_user]))
        return [next(weighed) if is_user else Weight(1.0, "", sample.reward) for sample, is_user in pairs]
