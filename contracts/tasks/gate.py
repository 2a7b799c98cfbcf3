"""What proves a task, declared: which of its graders a new version has to convince before users meet it."""

from __future__ import annotations

from pydantic import Field

from contracts.tasks.judges import JudgeRule
from contracts.tasks.rewards import GraderRule, VerifierRule
from contracts.tasks.section import TaskSection

PROVING_KINDS = frozenset(
    ("choice", "code", "exact", "function", "http", "json_exact", "math", "numeric", "reasoning_gym", "sql", "token_f1")
)
"""Verifiers that look at what the answer says: against a reference, by running it, or by code of the task's own."""
FORM_KINDS = frozenset(("instruction", "json_schema", "regex"))
"""Verifiers that look at how it is written: a wrong answer in the right form passes."""
COMPARING_KINDS = {"tool_call": ("match", "valid")}
"""Verifiers of both sorts: the field of their config, and its default, with which they look at the form alone."""

NEEDING_REFERENCE = PROVING_KINDS - {"function", "http"} | COMPARING_KINDS.keys()
"""Verifiers that can say nothing about an answer whose right one nobody knows."""


class GateRule(TaskSection):
    """How a candidate is judged on this task. The task's hash leaves it out, because it changes no score."""

    graders: tuple[str, ...] | None = None
    """Names of verifiers and admitted judges, of any role. A sentinel's value is the least that one of them gives. Without
    it: every verifier that looks at what an answer says, and every judge whose word counts (not those that watch)."""
    margin: float = Field(default=0.01, ge=0, lt=1)
    """Two answers whose values differ by no more than this are as good as each other. Values of 0 and 1 need none."""


def proves(rule: GraderRule) -> bool:
    """Whether a grader, asked about one answer, says more than that it has the right form."""
    if isinstance(rule, JudgeRule):
        return not why_no_gate(rule)
    if not isinstance(rule, VerifierRule):
        return False
    if rule.kind in COMPARING_KINDS:
        field, form_alone = COMPARING_KINDS[rule.kind]
        return bool(rule.config.get(field, form_alone) != form_alone)
    return rule.kind not in FORM_KINDS  # one that does not exist is named where kinds are known


def why_no_gate(rule: JudgeRule) -> str:
    """Why a judge cannot say what one answer is worth; empty if it can."""
    if rule.about != "answer":
        return "it judges what the user wrote next, and nobody answers a sentinel"
    if rule.protocol != "pointwise":
        return "it compares the choices of one completion, and a sentinel has one answer"
    return ""


def default_graders(rules: tuple[GraderRule, ...]) -> tuple[str, ...]:
    """What proves a task whose file does not say so. A judge that only watches has to be named: it costs money."""
    return tuple(
        rule.name for rule in rules if proves(rule) and not (isinstance(rule, JudgeRule) and rule.role == "watch")
    )
