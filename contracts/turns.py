"""A call's place in the tree of its session, its share of a signal about the session, and the names of branches.

A branch says why a call does not go on from an earlier call's tokens:

first               the session's first call
repeated            the same messages as an earlier call without an answer in them: a retry
other_beginning     it begins with another message: a sub-agent, a title, a summary
unknown_history     it has answers that are not kept here: too old, lost, from elsewhere, or not to be stored
answer_rewritten    the client changed the last answer
history_rewritten   the client changed, cut or condensed what came before
foreign_answer      behind the last known answer there is one that was not given here
tools_changed, options_changed, reasoning_changed   against the call before
reasoning_dropped   the chat template removes earlier reasoning once these messages follow
answer_cut          the answer before was ended by its length or a stop string, not by the model
no_new_message      nothing follows the answer
template            the chat template cannot render the new messages behind an answer
task_changed        it goes on from an answer of another task: with the same tokens, and for a lesson of its own
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Literal, NamedTuple, get_args

import msgspec

Branch = Literal[
    "",
    "first",
    "repeated",
    "unknown_history",
    "other_beginning",
    "answer_rewritten",
    "history_rewritten",
    "foreign_answer",
    "tools_changed",
    "options_changed",
    "reasoning_changed",
    "reasoning_dropped",
    "answer_cut",
    "no_new_message",
    "template",
    "task_changed",
]
BRANCHES: tuple[str, ...] = get_args(Branch)


class CountedCall(NamedTuple):
    """A logged call, and its lengths in tokens."""

    key: str
    turn: SessionTurn
    num_prompt: int
    num_sampled: int


class RowCount(NamedTuple):
    """What the calls of one session, or of many, come to. A row is a call with all that it goes on from."""

    calls: int
    rows: int
    """Calls that no other call goes on from."""
    branches: dict[str, int]
    """Calls by why they begin a branch; a linear session has one, its `first`."""
    tokens_apart: int
    """Of one row per call."""
    tokens_together: int
    """Where each token that a call has in common with its parent counts once."""

    @property
    def saved(self) -> float:
        """The share of tokens that need not be computed."""
        return 1.0 - self.tokens_together / self.tokens_apart if self.tokens_apart else 0.0


def count_rows(calls: Collection[CountedCall]) -> RowCount:
    """Rows, branches and tokens. A parent that is not among `calls` shares nothing."""
    known = {call.key for call in calls}
    apart = sum(call.num_prompt + call.num_sampled for call in calls)
    shared = sum(call.turn.parent_tokens for call in calls if call.turn.parent in known)
    gone_on = {call.turn.parent for call in calls if not call.turn.branch}
    branches = Counter(call.turn.branch for call in calls if call.turn.branch)
    return RowCount(len(calls), len(known - gone_on), dict(branches), apart, apart - shared)


class SessionTurn(msgspec.Struct, frozen=True):
    """The place of one call."""

    parent: str | None = None
    """The sample key of the call that it goes on from, or branches off; None: no such call is known."""
    parent_tokens: int = 0
    """With how many tokens of its parent's prompt and answer its prompt begins."""
    branch: str = ""
    """Why it begins anew, one of `BRANCHES`; empty: it is its parent's tokens, then new messages."""
    group: str | None = None
    """Of its session: sessions of one group try the same thing. None: no group, or logged by an older release."""


class SessionShare(msgspec.Struct, frozen=True):
    """The part of one call in a session that a signal judges as a whole. The *line*: the calls that led to the session's last answer."""

    session: str
    last: str
    """The sample key of the line's last call, which the signal is about."""
    index: int
    """Of this call on the line, from 0."""
    calls: int
    """Of the line."""
    credit: float
    """In [0, 1]: how much this call learns from the signal."""
    ended_at: float = 0.0
    """When the line's last call ended, UTC epoch seconds: what is said of a session is late or not for all of its calls."""
    group: str | None = None
    """Of the session, in an experience: its reward is compared with those of the group's other sessions."""

    @property
    def is_derived(self) -> bool:
        """True for a signal that was made from one about the line's last call."""
        return self.index < self.calls - 1
