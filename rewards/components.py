"""Step 1: the components of a reward, one score for each verifier, judge and signal. Pure.

Verifiers and judges were asked before the transaction (`task_graders.py`). What users did is scored here.
"""

from __future__ import annotations

from typing import NamedTuple

from contracts.draws import is_asked
from contracts.records import Score
from contracts.tasks import Task
from rewards.episode import UnpackedEpisode
from rewards.signals.mapping import About, score_signals


class Components(NamedTuple):
    """All scores of an episode."""

    graders: tuple[Score, ...]
    """Of verifiers, then of judges."""
    signals: tuple[Score, ...]
    """Of what users did. The signal with a weight above 0 decides."""

    @property
    def scores(self) -> tuple[Score, ...]:
        """Those of graders, then those of signals."""
        return self.graders + self.signals


def components_of(task: Task, item: UnpackedEpisode) -> Components:
    """The components of an episode whose graders were asked."""
    turn = item.turn
    about = About(item.body.text, turn.finished_at, is_asked(turn.completion_id, turn.ask_probability))
    return Components(item.grader_scores, tuple(score_signals(task, about, item.episode.signals)))
