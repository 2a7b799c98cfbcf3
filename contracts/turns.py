"""A call's place in the tree of its session, and the names of branches: why it does not go on from an earlier call's tokens.

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
"""

from __future__ import annotations

from typing import Literal, get_args

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
]
BRANCHES: tuple[str, ...] = get_args(Branch)


class SessionTurn(msgspec.Struct, frozen=True):
    """The place of one call."""

    parent: str | None = None
    """The sample key of the call that it goes on from, or branches off; None: no such call is known."""
    parent_tokens: int = 0
    """With how many tokens of its parent's prompt and answer its prompt begins."""
    branch: str = ""
    """Why its prompt was rendered anew, one of `BRANCHES`; empty: it is its parent's tokens, then new messages."""
