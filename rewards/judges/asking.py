"""Asks one judge about one case until it gives a verdict, or it is known why it does not. Waits for: the model.

If a reply has no verdict, the judge is asked again for the level alone, because a short reply is easier to parse. If that fails too, it
is asked about a control answer in place of the judged one. If the control gets a verdict, the judged answer is to blame, and must not
gain by it. A judge that often fails on the control itself is unreliable, and then no answer is blamed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

from contracts.tasks.judges import JudgeRule
from rewards.judges.client import JudgeClient, NoReply, Reply
from rewards.judges.parse import JudgeVerdict, parse_brief, parse_verdict
from rewards.judges.prompt import Case, Messages, messages_of, new_nonce
from rewards.judges.questions import NoVerdict

CONTROL = "I do not know."
"""The control: an answer that every working judge can give a verdict on."""
NUM_REMEMBERED, MOST_FAILED = 20, 2
"""A judge that failed more than `MOST_FAILED` of its last controls is unreliable: it cannot blame an answer."""

Charge = Callable[[int, Reply, Messages], None]
Count = Callable[[str], None]


class CaseAsker:
    """One for each judge. `charge` is called with every reply, `count` with its outcome. Safe for threads."""

    def __init__(self, rule: JudgeRule, clients: Mapping[int, JudgeClient], charge: Charge, count: Count) -> None:
        self._rule, self._clients, self._charge, self._count = rule, clients, charge, count
        self._lock = threading.Lock()
        self._controls: deque[bool] = deque(maxlen=NUM_REMEMBERED)

    def ask(self, seat: int, case: Case) -> JudgeVerdict | NoVerdict:
        """A verdict, or why there is none after two tries."""
        found = self._ask(seat, case, brief=False)
        if isinstance(found, NoVerdict) and found.fate == "unparsable":
            return self._ask(seat, case, brief=True)
        return found

    def culprits(self, seat: int, case: Case) -> tuple[str, ...]:
        """The answers that keep the judge from a verdict; empty if the judge is unreliable."""
        found = tuple(answer for place, answer in enumerate(case.answers) if self._has_verdict(seat, case, {place}))
        if not found and len(case.answers) > 1 and self._has_verdict(seat, case, {*range(len(case.answers))}):
            found = case.answers  # each alone is enough to prevent a verdict
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
            fate: Literal["unparsable", "failed"] = "unparsable" if reply.kind == "refused" else "failed"
            self._count(fate)
            return NoVerdict(fate, reply.reason)
        self._charge(seat, reply, messages)
        tokens = reply.tokens if self._rule.expected_level else ()
        verdict = (parse_brief if brief else parse_verdict)(reply.content, self._rule.scale, tokens)
        self._count("answered" if verdict else "unparsable")
        return verdict or NoVerdict("unparsable", f"{client.endpoint.model}: no verdict in {reply.content[:60]!r}")
