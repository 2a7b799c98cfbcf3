"""The judge of killed sessions sees each thing that may go wrong."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer

from contracts.turns import SessionTurn
from tests.adversary.kills.sessions import judge
from tests.each_case import each_case
from tests.worlds.paths import BASE
from tests.worlds.sessions.records import LoggedCall
from tests.worlds.sessions.users import Sent

TOKENIZER = Tokenizer.from_file(str(BASE / "tokenizer.json"))
SENT = [Sent("a", "s1", 0, "whole"), Sent("b", "s1", 1, "broken"), Sent("c", "s1", 1, "whole")]


def call(attempt: str, text: str, turn: SessionTurn, session: str = "s1") -> LoggedCall:
    prompt = TOKENIZER.encode(text, add_special_tokens=False).ids
    return LoggedCall(f"{attempt}:0", session, turn, prompt, [90, 91], {"attempt": attempt}, [1], "stop")


FIRST = call("a", "s1 0: a table.", SessionTurn(branch="first"))


def after(attempt: str, **changes: Any) -> LoggedCall:
    """A call that goes on from the first one."""
    before = [*FIRST.prompt, *FIRST.sampled]
    new = TOKENIZER.encode("s1 1: another.", add_special_tokens=False).ids
    one = call(attempt, "", SessionTurn("a:0", len(before)))
    return one._replace(**{"prompt": [*before, *new], **changes})


def test_a_session_that_went_on_is_good() -> None:
    found = judge(SENT, [FIRST, after("c")], TOKENIZER)
    assert found["problems"] == {}
    assert (found["is_balanced"], found["turns"], found["rows"]) == (True, {"first": 1, "extended": 1}, 1)


def test_a_broken_request_may_be_logged_once() -> None:
    found = judge(SENT, [FIRST, after("b"), after("c")], TOKENIZER)
    assert (found["problems"], found["logged_unacknowledged"], found["is_balanced"]) == ({}, 1, True)


@each_case(
    ("logged", "problem"),
    [
        ([FIRST], "acknowledged_and_not_logged"),
        ([FIRST, after("c"), after("c", key="d:0")], "logged_twice"),
        ([FIRST, after("c"), after("x")], "logged_and_never_sent"),
        ([FIRST, after("c", turn=SessionTurn("z:0", 3))], "parent_not_logged"),
        ([FIRST, after("c", turn=SessionTurn("a:0", 3))], "wrong_prefix"),
        ([FIRST, after("c", session="s2")], "wrong_prefix"),
        ([FIRST, after("c", prompt=[5, *after("c").prompt])], "wrong_prefix"),
        ([FIRST, after("c", prompt=[*after("c").prompt, *after("c").prompt])], "wrong_text"),
        ([FIRST, after("c", turn=SessionTurn("a:0", 3, "answer_rewritten"))], "unnamed_branch"),
    ],
)
def test_what_may_go_wrong_is_seen(logged: list[LoggedCall], problem: str) -> None:
    assert problem in judge(SENT, logged, TOKENIZER)["problems"]


def test_a_refusal_is_a_problem() -> None:
    assert "refused" in judge([*SENT, Sent("d", "s1", 2, "500")], [FIRST, after("c")], TOKENIZER)["problems"]
