"""Judges batches of answers. Waits for: the models; all questions of a batch are asked in parallel.

An answer is settled without asking (empty, or nothing to judge), left out at random to stay within the budget, found in the cache, or
asked. A model that gives no verdict is asked again for the level alone, because a short reply is easier to parse; then the fallback is
asked. Without any verdict the answer is unscored through our own fault, never 0 or the middle; unless the answer itself prevents the
verdict. That is found out by a control in its place: if the control gets a verdict, the judged answer is to blame, and earns the
lowest value. A judge that often fails on the control itself is unreliable, and then no answer is blamed.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import structlog

from contracts.errors import Unavailable
from contracts.tasks.judges import JudgeEndpoint, JudgeRule
from rewards.judges.budget import CLOCKS, DAY_SECONDS, Budget, Clocks, JudgeCosts, JudgeStore, is_drawn
from rewards.judges.client import JudgeClient, NoReply, Reply
from rewards.judges.parse import JudgeVerdict, parse_brief, parse_verdict
from rewards.judges.prompt import Case, Messages, messages_of, new_nonce, parts_of
from rewards.judges.questions import FALLBACK, Findings, Inquiry, JudgeQuestion, NoVerdict, Reading, inquire, read
from rewards.verifiers.check import Answer, Check, broken, unlabelled
from runtime.metrics import JUDGE_CALLS, JUDGE_DISAGREEMENT, JUDGE_MONEY, JUDGE_ORDER_FLIPS, JUDGE_TOKENS

_CHARS_PER_TOKEN = 4.0
_TEMPLATE_TOKENS = 350
_MILLION = 1_000_000.0
_SMOOTHING = 0.05
CONTROL = "I do not know."
"""The control: an answer that every working judge can give a verdict on."""
NUM_REMEMBERED, MOST_FAILED = 20, 2
"""A judge that failed more than `MOST_FAILED` of its last controls is unreliable: it cannot blame an answer."""

log = structlog.get_logger()


class Judge:
    """One judge of one task. `clients` are in the order of the rule's endpoints. Takes one batch at a time."""

    def __init__(
        self,
        task: str,
        rule: JudgeRule,
        clients: Sequence[JudgeClient],
        fallback: JudgeClient | None,
        *,
        store: JudgeStore,
        clocks: Clocks = CLOCKS,
    ) -> None:
        self.rule = rule
        self._clients = {**dict(enumerate(clients)), **({FALLBACK: fallback} if fallback else {})}
        self._store, self._clocks = store, clocks
        self._budget = Budget(task, rule, store, clocks)
        self._lock = threading.Lock()
        self._controls: deque[bool] = deque(maxlen=NUM_REMEMBERED)
        self._spent = JudgeCosts()
        self.spent_in_all = JudgeCosts()
        self._output_tokens = rule.max_tokens / 4.0
        self._forgot_on = -1.0

    def check_all(self, answers: Sequence[Answer]) -> list[Check]:
        """See `BatchVerifier`."""
        try:
            return [reading.check for reading in self.read_all(answers)]
        except Unavailable as error:  # it concerns all answers: asking one by one would only take longer
            return [broken(error.message) for _ in answers]

    def read_all(self, answers: Sequence[Answer]) -> list[Reading]:
        """A reading for each answer. Raises Unavailable: the store cannot be read."""
        inquiries = [inquire(self.rule, answer) for answer in answers]
        raised = {question.key: question for inquiry in inquiries for question in inquiry.questions}
        known = self._store.verdicts({*raised, *(question.fallback_key for question in raised.values())} - {""})
        share = self._share([question for key, question in raised.items() if key not in known])
        kept = [self._is_kept(answer, share) for answer in answers]
        asked_about = [inquiry for inquiry, is_kept in zip(inquiries, kept, strict=True) if is_kept]
        wanted = {question.key for inquiry in asked_about for question in inquiry.questions}
        self._count("cached", len(wanted & known.keys()))
        fresh: dict[str, JudgeVerdict] = {}
        asked = self._ask_all([raised[key] for key in raised if key in wanted and key not in known], known, fresh)
        self._save(fresh)
        return [
            self._reading(inquiry, share if is_kept else None, {**known, **asked})
            for inquiry, is_kept in zip(inquiries, kept, strict=True)
        ]

    def _is_kept(self, answer: Answer, share: float) -> bool:
        key = answer.key or answer.text
        if self.rule.protocol == "pairwise" and answer.key:
            key = answer.key.rpartition(":")[0] or answer.key  # all choices of a completion are kept or shed together
        return is_drawn(self.rule.name, key, share)

    def _share(self, questions: Sequence[JudgeQuestion]) -> float:
        tokens = money = 0.0
        for question in questions:
            size = _TEMPLATE_TOKENS + sum(len(text) for _, text in parts_of(question.case)) / _CHARS_PER_TOKEN
            tokens += size + self._output_tokens
            money += _money(self._clients[question.seat].endpoint, size, self._output_tokens)
        return self._budget.share(tokens, money)

    def _ask_all(
        self, questions: Sequence[JudgeQuestion], known: Findings, fresh: dict[str, JudgeVerdict]
    ) -> dict[str, JudgeVerdict | NoVerdict]:
        """Ask in parallel. `fresh` collects each verdict under the key of the model that gave it."""
        if not questions:
            return {}
        with ThreadPoolExecutor(min(self.rule.concurrency, len(questions)), thread_name_prefix="judge") as pool:
            found = list(pool.map(lambda question: self._ask(question, known, fresh), questions))
        return {question.key: finding for question, finding in zip(questions, found, strict=True)}

    def _ask(
        self, question: JudgeQuestion, known: Findings, fresh: dict[str, JudgeVerdict]
    ) -> JudgeVerdict | NoVerdict:
        found = self._verdict(question.seat, question.case)
        if isinstance(found, JudgeVerdict):
            fresh[question.key] = found
            return found
        seat = question.seat
        if FALLBACK in self._clients:
            other = known.get(question.fallback_key) or self._verdict(FALLBACK, question.case)
            if isinstance(other, JudgeVerdict):
                fresh[question.fallback_key] = other
                self._count("fallback")
                return other
            if found.fate == "failed":
                found, seat = found._replace(fate=other.fate), FALLBACK
            found = found._replace(reason=f"{found.reason}; fallback {other.reason}")
        if found.fate == "unparsable":
            found = found._replace(culprits=self._culprits(seat, question.case))
        return found

    def _verdict(self, seat: int, case: Case) -> JudgeVerdict | NoVerdict:
        """A verdict, or why there is none after two tries."""
        found = self._asked(seat, case, brief=False)
        if isinstance(found, NoVerdict) and found.fate == "unparsable":
            return self._asked(seat, case, brief=True)
        return found

    def _culprits(self, seat: int, case: Case) -> tuple[str, ...]:
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
        return isinstance(self._asked(seat, case._replace(answers=answers), brief=True), JudgeVerdict)

    def _asked(self, seat: int, case: Case, *, brief: bool) -> JudgeVerdict | NoVerdict:
        try:
            messages = messages_of(self.rule, case, new_nonce(case), brief=brief)
        except ValueError as error:
            return NoVerdict("failed", str(error))
        client = self._clients[seat]
        reply = client.ask(messages, brief=brief)
        if isinstance(reply, NoReply):
            fate: Literal["unparsable", "failed"] = "unparsable" if reply.kind == "refused" else "failed"
            self._count(fate)
            return NoVerdict(fate, reply.reason)
        self._charge(seat, reply, messages)
        tokens = reply.tokens if self.rule.expected_level else ()
        verdict = (parse_brief if brief else parse_verdict)(reply.content, self.rule.scale, tokens)
        self._count("answered" if verdict else "unparsable")
        return verdict or NoVerdict("unparsable", f"{client.endpoint.model}: no verdict in {reply.content[:60]!r}")

    def _charge(self, seat: int, reply: Reply, messages: Messages) -> None:
        """Count the cost of a reply. If the server does not report tokens, they are estimated from the length."""
        endpoint = self._clients[seat].endpoint
        num_chars = sum(len(message["content"]) for message in messages)
        num_input = reply.num_input or round(num_chars / _CHARS_PER_TOKEN)
        num_output = reply.num_output or round(len(reply.content) / _CHARS_PER_TOKEN)
        money = _money(endpoint, num_input, num_output)
        with self._lock:
            self._spent = self._spent.plus(JudgeCosts(1, num_input + num_output, money))
            self._output_tokens += _SMOOTHING * (num_output - self._output_tokens)
        JUDGE_TOKENS.labels(self.rule.name, "input").inc(num_input)
        JUDGE_TOKENS.labels(self.rule.name, "output").inc(num_output)
        JUDGE_MONEY.labels(self.rule.name).inc(money)

    def _save(self, fresh: dict[str, JudgeVerdict]) -> None:
        """Store verdicts and costs. While the database is away the verdicts still count; they are only not remembered."""
        spent, self._spent = self._spent, JudgeCosts()
        self.spent_in_all = self.spent_in_all.plus(spent)
        now = self._clocks.utc()
        try:
            self._budget.spend(spent)
            self._store.keep(self.rule.name, fresh, now)
            if now // DAY_SECONDS != self._forgot_on:
                self._store.forget(self.rule.name, now - self.rule.cache_days * DAY_SECONDS)
                self._forgot_on = now // DAY_SECONDS
        except Unavailable as error:
            log.warning("verdicts are not kept", judge=self.rule.name, reason=error.message)

    def _reading(self, inquiry: Inquiry, share: float | None, findings: Findings) -> Reading:
        """`share`: the probability with which the answer was kept; None if it was shed."""
        if inquiry.settled is not None:
            self._count(inquiry.settled.fate)
            return inquiry.settled
        if share is None:
            self._count("shed")
            return Reading(unlabelled("shed: the judge sees a share of the answers"), "shed")
        reading = read(self.rule, inquiry, findings)
        if reading.fate == "provoked":
            self._count("provoked")
        if reading.num_flips:
            JUDGE_ORDER_FLIPS.labels(self.rule.name).inc(reading.num_flips)
        if reading.fate == "judged" and len(self.rule.endpoints) > 1:
            JUDGE_DISAGREEMENT.labels(self.rule.name).observe(reading.disagreement)
        return reading._replace(check=reading.check._replace(propensity=share))

    def _count(self, fate: str, num: int = 1) -> None:
        if num:
            JUDGE_CALLS.labels(self.rule.name, fate).inc(num)


def _money(endpoint: JudgeEndpoint, num_input: float, num_output: float) -> float:
    price = endpoint.price_per_million_tokens
    return (num_input * price.input + num_output * price.output) / _MILLION
