"""Asks one judge about one case until there is a verdict, or somebody is at fault for there being none.

In: cases. Out: verdicts, or failures with who caused them. Waits: for the model. It remembers how its own questions of
control went.

A reply that is no verdict is asked for once more, in a form that leaves less to go wrong: the level alone. If that is none
either, the same is asked once with another answer in the place of the one that is judged. Where that has a verdict, the
answer is why its own had none, and may not escape by it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping

from contracts.tasks.judges import JudgeRule
from rewards.judges.client import JudgeClient, NoReply, Reply
from rewards.judges.parse import JudgeVerdict, parse_brief, parse_verdict
from rewards.judges.prompt import Case, Messages, messages_of, new_nonce
from rewards.judges.questions import NoVerdict

CONTROL = "I do not know."
"""An answer that keeps no judge from a verdict."""
NUM_REMEMBERED, MOST_FAILED = 20, 2
"""A judge that fails more of its last controls than that is not well, and its word against an answer is worth nothing."""

Charge = Callable[[int, Reply, Messages], None]
Count = Callable[[str], None]


class CaseAsker:
    """One for each judge. `charge` is told of every reply, `count` what became of it. Safe for threads."""

    def __init__(self, rule: JudgeRule, clients: Mapping[int, JudgeClient], charge: Charge, count: Count) -> None:
        self._rule, self._clients, self._charge, self._count = rule, clients, charge, count
        self._lock = threading.Lock()
        self._controls: deque[bool] = deque(maxlen=NUM_REMEMBERED)

    def ask(self, seat: int, case: Case) -> JudgeVerdict | NoVerdict:
        """A verdict, after at most one more question."""
        found = self._ask(seat, case, brief=False)
        if isinstance(found, NoVerdict) and found.fate == "unparsable":
            return self._ask(seat, case, brief=True)
        return found

    def culprits(self, seat: int, case: Case) -> tuple[str, ...]:
        """The answers of a case but for which there would be a verdict; none where the judge is not well."""
        found = tuple(answer for place, answer in enumerate(case.answers) if self._has_verdict(seat, case, {place}))
        if not found and len(case.answers) > 1 and self._has_verdict(seat, case, {*range(len(case.answers))}):
            found = case.answers  # each by itself is enough
        is_well = bool(found)
        with self._lock:
            self._controls.append(is_well)
            is_well = is_well and list(self._controls).count(False) <= MOST_FAILED
        return found if is_well else ()

    def _has_verdict(self, seat: int, case: Case, replaced: set[int]) -> bool:
        answers = tuple(CONTROL if place in replaced else answer for place, answer in enumerate(case.answers))
        return isinstance(self._ask(seat, case._replace(answers=answers), brief=True), JudgeVerdict)

    def _ask(self, seat: int, case: Case, *, brief: bool) -> JudgeVerdict | NoVerdict:
        try:
            messages = messages_of(self._rule, case, new_nonce(case), brief=brief)
        except ValueError as error:
            return NoVerdict("failed", str(error))
        client = self._clients[seat]
        reply = client.ask(messages, brief=brief)
        if isinstance(reply, NoReply):
            self._count("unparsable" if reply.refused else "failed")
            return NoVerdict("unparsable" if reply.refused else "failed", reply.reason)
        self._charge(seat, reply, messages)
        tokens = reply.tokens if self._rule.expected_level else ()
        verdict = (parse_brief if brief else parse_verdict)(reply.content, self._rule.scale, tokens)
        self._count("answered" if verdict else "unparsable")
        return verdict or NoVerdict("unparsable", f"{client.endpoint.model}: no verdict in {reply.content[:60]!r}")
