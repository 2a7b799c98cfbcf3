"""A session's calls as an indented tree, and what they come to. Pure.

A chain of calls keeps its indentation; what branches off it is indented once more. So a session of fifty turns is one straight line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from contracts.turns import CountedCall, RowCount, count_rows
from services.dashboard.sessions.queries import CallRef, ShownCall

WORDS = {
    "": "goes on",
    "first": "first call",
    "repeated": "repeats an earlier call: a retry",
    "unknown_history": "has answers that are not kept here",
    "other_beginning": "begins with another message: a sub-agent, a title, a summary",
    "answer_rewritten": "the client changed the last answer",
    "history_rewritten": "the client changed, cut or condensed what came before",
    "foreign_answer": "has an answer that was not given here",
    "tools_changed": "other tools than before",
    "options_changed": "other options of the template than before",
    "reasoning_changed": "other reasoning than before",
    "reasoning_dropped": "the template removed earlier reasoning",
    "answer_cut": "the answer before was cut off",
    "no_new_message": "nothing follows the answer",
    "task_changed": "another task than the answer before",
    "template": "the template cannot render the new messages",
}
"""Why the prompt of a call was rendered anew, see `contracts/turns.py`."""


class TreeLine(NamedTuple):
    """One call in its place. `depth` counts branches from the root; `parent`: the call before it, if it is on this page."""

    call: ShownCall
    depth: int
    parent: ShownCall | None

    @property
    def why(self) -> str:
        """How it follows the call before it, in words; empty if its record cannot be read."""
        record = self.call.record
        return WORDS.get(record.turn.branch, record.turn.branch) if record else ""

    @property
    def is_break(self) -> bool:
        """Whether its prompt was rendered anew though it is not the session's first call."""
        return self.call.record is not None and self.call.record.turn.branch not in {"", "first"}

    @property
    def is_apart(self) -> bool:
        """Whether the call before it stands elsewhere than above it, or is not gone on from: then it has to be named."""
        before = self.parent
        return before is not None and (self.is_break or self.depth > 0 or before.number != self.call.number - 1)

    @property
    def num_common(self) -> int:
        """Tokens that it has in common with its parent."""
        record = self.call.record
        return min(record.turn.parent_tokens, record.num_prompt) if record else 0

    @property
    def num_new(self) -> int:
        """Tokens of the prompt that its parent does not have."""
        return self.call.record.num_prompt - self.num_common if self.call.record else 0


class SessionTotals(NamedTuple):
    """Of the calls on one page. `longest`: tokens of its longest prompt and answer."""

    counted: RowCount
    breaks: list[tuple[str, int]]
    """Words and number of calls, the most frequent first."""
    states: list[tuple[str, int]]
    versions: list[int]
    longest: int
    num_unread: int
    """Calls whose records cannot be read, or are not stored any more: not counted otherwise."""


def tree_of(calls: Sequence[ShownCall]) -> list[TreeLine]:
    """The calls, each under the one that it goes on from. `calls` are in the order of time.

    The longest chain behind a call goes on at its indentation, of equally long ones the newest. A call whose parent is not older, or not
    among `calls`, stands at the root.
    """
    place: dict[CallRef, int] = {}
    parents: list[int | None] = []
    for at, call in enumerate(calls):
        parents.append(place.get(call.parent) if call.parent else None)
        place[call.ref] = at
    children: list[list[int]] = [[] for _ in calls]
    length = [1] * len(calls)
    for at in range(len(calls) - 1, -1, -1):
        parent = parents[at]
        if parent is not None:
            children[parent].insert(0, at)
            length[parent] = max(length[parent], length[at] + 1)
    lines = []
    waiting = [(at, 0) for at in range(len(calls) - 1, -1, -1) if parents[at] is None]
    while waiting:
        at, depth = waiting.pop()
        parent = parents[at]
        lines.append(TreeLine(calls[at], depth, None if parent is None else calls[parent]))
        if children[at]:
            onward = max(children[at], key=lambda child: (length[child], child))
            waiting.append((onward, depth))
            waiting += [(child, depth + 1) for child in reversed(children[at]) if child != onward]
    return lines


def totals_of(calls: Sequence[ShownCall]) -> SessionTotals:
    """What the calls of a page come to."""
    read = [(call.ref, call.record) for call in calls if call.record is not None]
    calls_read = [CountedCall(ref.key, record.turn, record.num_prompt, record.num_sampled) for ref, record in read]
    counted = count_rows(calls_read)
    breaks = {WORDS.get(name, name): num for name, num in counted.branches.items() if name != "first"}
    return SessionTotals(
        counted,
        Counter(breaks).most_common(),
        Counter(call.head.state for call in calls if call.head is not None).most_common(),
        sorted({version for _, record in read for version in record.versions}),
        max((record.num_prompt + record.num_sampled for _, record in read), default=0),
        len(calls) - len(read),
    )
