"""The section [gate]: which graders of a task a new version must pass before it serves users."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from contracts.tasks.judges import JudgeRule
from contracts.tasks.rewards import GraderRule, VerifierRule
from contracts.tasks.section import TaskSection

PROVING_KINDS = frozenset(
    ("choice", "code", "exact", "function", "http", "json_exact", "math", "numeric", "reasoning_gym", "sql", "token_f1")
)
"""Verifiers that check the content of an answer: against a reference, by running it, or by the task's own code."""
FORM_KINDS = frozenset(("instruction", "json_schema", "regex"))
"""Verifiers that check only the form: a wrong answer in the right form passes."""
COMPARING_KINDS = {"tool_call": ("match", "valid")}
"""Verifiers of both kinds: the config field, and the value of it with which they check only the form."""

NEEDING_REFERENCE = PROVING_KINDS - {"function", "http"} | COMPARING_KINDS.keys()
"""Verifiers that need a reference answer."""


class GateRule(TaskSection):
    """How a candidate is judged on this task. The task's hash leaves it out, because it changes no score."""

    graders: tuple[str, ...] | None = None
    """Names of verifiers and admitted judges, of any role. An answer gets the lowest value that one of them gives. Default:
    every verifier that checks content, and every admitted judge except those with the role `watch`."""
    margin: float = Field(default=0.01, ge=0, lt=1)
    """Two answers whose values differ by at most this are equally good. Values of only 0 and 1 need no margin."""


def proves(rule: GraderRule) -> bool:
    """Whether a grader checks more than the form of one answer."""
    if isinstance(rule, JudgeRule):
        return not why_no_gate(rule)
    if not isinstance(rule, VerifierRule):
        return False
    if rule.kind in COMPARING_KINDS:
        field, form_alone = COMPARING_KINDS[rule.kind]
        return bool(rule.config.get(field, form_alone) != form_alone)
    return rule.kind not in FORM_KINDS  # unknown kinds are reported where the kinds are known


def without_reference(rules: Collection[GraderRule], names: Collection[str]) -> tuple[str, ...]:
    """Those of the named graders that can grade an answer without a reference."""
    return tuple(
        rule.name
        for rule in rules
        if rule.name in names and not (isinstance(rule, VerifierRule) and rule.kind in NEEDING_REFERENCE)
    )


def why_no_gate(rule: JudgeRule) -> str:
    """Why a judge cannot grade a single answer; empty if it can."""
    if rule.about != "answer":
        return "it judges what the user wrote next, and nobody answers a sentinel"
    if rule.protocol != "pointwise":
        return "it compares the choices of one completion, and a sentinel has one answer"
    return ""


def default_graders(rules: tuple[GraderRule, ...]) -> tuple[str, ...]:
    """The graders of a task without `gate.graders`. A judge with the role `watch` must be named: it costs money."""
    return tuple(
        rule.name for rule in rules if proves(rule) and not (isinstance(rule, JudgeRule) and rule.role == "watch")
    )
