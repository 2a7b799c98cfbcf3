"""Which calls of a session led to its last answer: its main line. Pure.

The calls of a session are a tree: each goes on from a parent or begins anew. A session's signal is about the work that was done, so it is
about the longest chain of parents; a title, a summary, a sub-agent or a retry is not on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contracts.ids import sample_key, time_of
from contracts.tasks import Task
from contracts.turns import SessionShare
from pipelines.episodes.keys.rules import AnswerRef


class SessionCall(NamedTuple):
    """A call of a session. `parent`: the call that it goes on from, or branches off. `is_cut`: nobody has its whole answer.

    `ended_at`: UTC epoch seconds.
    """

    answer: AnswerRef
    parent: AnswerRef | None
    task: str
    ended_at: float
    is_cut: bool = False


class LinePart(NamedTuple):
    """A call that a session's signal reaches, and its share."""

    answer: AnswerRef
    share: SessionShare


def main_line(calls: Sequence[SessionCall]) -> list[AnswerRef]:
    """The longest chain of parents that ends with a whole answer, the root first; of equally long ones, the one that ends last.

    A parent that is not among the calls, or that has another task, begins a chain. Parents are always older than their children;
    a record that says otherwise begins a chain too.
    """
    known = {call.answer: call for call in calls}
    parents: dict[AnswerRef, AnswerRef | None] = {}
    depth: dict[AnswerRef, int] = {}
    for call in sorted(calls, key=lambda each: each.answer.age):
        parent = known.get(call.parent) if call.parent else None
        is_real = parent is not None and parent.task == call.task and parent.answer in depth
        parents[call.answer] = call.parent if is_real else None
        depth[call.answer] = 1 + (depth[parent.answer] if parent is not None and is_real else 0)
    line: list[AnswerRef] = []
    whole = [answer for answer in depth if not known[answer].is_cut]
    at = max(whole, key=lambda answer: (depth[answer], answer.age), default=None)
    while at is not None:
        line.append(at)
        at = parents[at]
    return line[::-1]


def parts_of(
    session: str, calls: Sequence[SessionCall], tasks: Mapping[str, Task], received_at: float
) -> list[LinePart]:
    """The calls that a signal reaches, in order; the last one is the one that the signal is about.

    Args:
        session: its id.
        calls: all that are known, later ones too.
        tasks: by name.
        received_at: when the signal came, UTC epoch seconds: later calls are not reached.

    Returns:
        Nothing if the task of the main line has no [credit]: the signal is about the newest answer then.
    """
    before = [call for call in calls if time_of(call.answer.completion_id) <= received_at]
    line = main_line(before)
    if not line:
        return []
    last = next(call for call in before if call.answer == line[-1])
    task = tasks.get(last.task)
    if task is None or task.credit is None:
        return []
    oldest = received_at - task.credit.longest_seconds
    reached = [answer for answer in line if answer == last.answer or time_of(answer.completion_id) >= oldest]
    credits_ = [task.credit.of(index, len(reached)) for index in range(len(reached))]
    return [
        LinePart(answer, SessionShare(session, sample_key(*last.answer), index, len(reached), credit, last.ended_at))
        for index, (answer, credit) in enumerate(zip(reached, credits_, strict=True))
        if credit > 0.0
    ]
