"""The schema of a task file: a unit of product behaviour, written in TOML, validated at start, hashed into every score.

A task declares which signals an app may send, what they are worth, which verifiers and judges grade the answer, how all of this combines,
who chooses the sampling, and what silence means. Task files name verifiers; `rewards` implements them.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from contracts.errors import InvalidValue
from contracts.record_checks import MAX_NAME
from contracts.tasks.credit import CreditRule
from contracts.tasks.curation import CurationRule
from contracts.tasks.gate import GateRule, default_graders, proves, why_no_gate
from contracts.tasks.judges import JudgeRule
from contracts.tasks.learning import LearningRule
from contracts.tasks.people import AskingRule, AuditRule, TrustRule
from contracts.tasks.rewards import GraderRule, RewardRule, VerifierRule
from contracts.tasks.section import NOWHERE, Misplaced, Source, TaskSection
from contracts.tasks.signals import SignalRule

_ROUNDING = 1e-6


class ExploreRule(TaskSection):
    """The share of answers that are sampled more widely, so that the policy finds better ones, and how."""

    share: float = Field(gt=0, le=1)
    """Of users' requests, drawn by chance."""
    temperature: float = Field(gt=0, le=2)
    """Of those answers."""


class SamplingRule(TaskSection):
    """Who chooses how answers are sampled."""

    owner: Literal["task", "caller"] = "task"
    """`task`: the values below replace the caller's, so that every answer can be trained on; `caller`: they are
    defaults."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Below 1, answers are off support: logged, but never trained."""
    max_tokens: int = Field(default=256, ge=1)
    """Maximum length of an answer, in tokens."""
    explore: ExploreRule | None = None
    """What users pay for exploring, if the task owns the sampling: all other answers have the temperature above. Without it, all answers
    explore as much as that temperature says."""

    @model_validator(mode="after")
    def _explores_more(self) -> Self:
        if self.explore is not None and self.owner == "caller":
            raise Misplaced('callers choose the sampling; set `owner = "task"`, or remove `explore`', "explore")
        if self.explore is not None and self.explore.temperature <= self.temperature:
            raise Misplaced(
                f"exploring at {self.explore.temperature:g} is no wider than `temperature = {self.temperature:g}`; raise it, or "
                "remove `explore`",
                *("explore", "temperature"),
            )
        return self


class Task(TaskSection):
    """A whole task file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=MAX_NAME)
    """Name of the task: requests send it as `metadata.task`."""
    window_seconds: float = Field(default=600.0, gt=0)
    """How long to wait for signals, from the end of the answer."""
    consent: Literal["train", "none"] = "train"
    """The meaning of a missing `store`: log and train, or neither."""
    silence: Literal["unlabelled", "expected", "renormalise"] | float = "unlabelled"
    """The reward if no decisive signal arrives. `unlabelled`: none. A number: this one. `expected`: the mean of the signals for
    answers that the graders call equally good, at reduced weight. `renormalise`: the graders alone decide, which also rewards
    answers that nobody reacts to."""
    baseline_key: Literal["task", "tenant"] = "task"
    """Which samples share a baseline."""
    sampling: SamplingRule = SamplingRule()
    reward: RewardRule = RewardRule()
    signals: dict[str, SignalRule] = Field(min_length=1)
    verifiers: tuple[VerifierRule, ...] = ()
    judges: tuple[JudgeRule, ...] = ()
    asking: AskingRule | None = None
    audit: AuditRule | None = None
    credit: CreditRule | None = None
    """Without it, a signal about a session is about its newest answer alone."""
    trust: TrustRule = TrustRule()
    curation: CurationRule = CurationRule()
    gate: GateRule = GateRule()
    learning: LearningRule = LearningRule()

    _source: Source = PrivateAttr(default=NOWHERE)

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        places = [("verifiers", index, rule.name) for index, rule in enumerate(self.verifiers)]
        places += [("judges", index, rule.name) for index, rule in enumerate(self.judges)]
        seen = {*self.signals}
        for table, index, name in places:
            if name in seen:
                raise Misplaced(f"two parts of the reward are named {name!r}; rename one", table, index, "name")
            seen.add(name)
        for name, signal in self.signals.items():
            if not 1 <= len(name) <= MAX_NAME or "\0" in name:
                raise Misplaced(f"a signal's name has 1 to {MAX_NAME} characters and no NUL", "signals", name)
            if any(not self.reward.low <= worth <= self.reward.high for worth in signal.worths):
                worths = ", ".join(f"{worth:g}" for worth in signal.worths)
                raise Misplaced(
                    f"it is worth {worths}, and rewards go from {self.reward.low:g} to {self.reward.high:g}; set `low` "
                    "and `high` under [reward]",
                    *("signals", name),
                )
        self._check_weights()
        self._check_silence()
        self._check_audit()
        self._check_gate()
        return self

    def _check_gate(self) -> None:
        named = self.gate.graders
        if named is None:
            return
        rules = {rule.name: rule for rule in self.grader_rules}
        for name in named:
            if name not in rules:
                raise Misplaced(
                    f"no verifier or judge is called {name!r}; there are {', '.join(sorted(rules)) or 'none'}",
                    *("gate", "graders"),
                )
            rule = rules[name]
            if isinstance(rule, JudgeRule) and (reason := why_no_gate(rule)):
                raise Misplaced(f"judge {name!r} cannot gate: {reason}; name another", "gate", "graders")
        if not any(proves(rules[name]) for name in named):
            raise Misplaced(
                f"{', '.join(named) or 'no grader'}: only the form of an answer is checked, so a wrong answer would pass; name a "
                "grader that checks correctness, or remove [gate], which leaves this task ungated",
                *("gate", "graders"),
            )

    def _check_silence(self) -> None:
        if self.silence not in {"expected", "renormalise"}:
            return
        if self.signals_weight <= _ROUNDING:
            raise Misplaced(
                f"signals have no weight in this task, so `silence = {self.silence!r}` has no effect; remove it, or set "
                "`reward.signals`",
                "silence",
            )
        if not any(rule.role == "gate" or (rule.role == "component" and rule.weight) for rule in self.grader_rules):
            raise Misplaced(
                f"no verifier or judge of this task is a gate or a component, so `silence = {self.silence!r}` would give all silent "
                "answers the same reward; add a grader, or remove `silence`, and silent answers stay unlabelled",
                "silence",
            )

    def _check_audit(self) -> None:
        if self.audit is None:
            return
        roles = {judge.name: judge.role for judge in self.judges}
        if self.audit.judge not in roles:
            raise Misplaced(f"no judge is called {self.audit.judge!r}; add it under [[judges]]", "audit", "judge")
        if roles[self.audit.judge] != "watch":
            raise Misplaced(
                f"judge {self.audit.judge!r} sees only audited samples, so it cannot decide a reward; set its role to `watch`",
                *("audit", "judge"),
            )

    def _check_weights(self) -> None:
        total = self.signals_weight + self.components_weight
        if self.signals_weight >= -_ROUNDING and abs(total - 1.0) <= _ROUNDING:
            return
        table = "verifiers" if any(rule.role == "component" for rule in self.verifiers) else "judges"
        first = next((place for place, rule in enumerate(getattr(self, table)) if rule.role == "component"), 0)
        raise Misplaced(
            f"weights of the components add up to {self.components_weight:g}, and signals have "
            f"{max(0.0, self.signals_weight):g}: together they must be 1; change a weight, or leave `reward.signals` "
            "out to give signals the rest",
            *((table, first, "weight") if self.components_weight else ("reward", "signals")),
        )

    @property
    def grader_rules(self) -> tuple[GraderRule, ...]:
        """Verifiers, then judges."""
        return (*self.verifiers, *self.judges)

    @cached_property
    def gate_graders(self) -> tuple[str, ...]:
        """Names of the graders that gate a candidate; empty: this task is ungated."""
        return default_graders(self.grader_rules) if self.gate.graders is None else self.gate.graders

    @cached_property
    def components_weight(self) -> float:
        """Total weight of verifiers and judges."""
        return sum(rule.weight for rule in self.grader_rules if rule.role == "component")

    @cached_property
    def signals_weight(self) -> float:
        """Total weight of users' signals."""
        return self.reward.signals if self.reward.signals is not None else round(1.0 - self.components_weight, 9)

    @cached_property
    def ranked_signals(self) -> tuple[tuple[str, SignalRule], ...]:
        """The signals in the order in which they decide: as declared, with `shown` last."""
        return tuple(sorted(self.signals.items(), key=lambda item: item[1].means == "shown"))

    @cached_property
    def ranked_unasked(self) -> tuple[tuple[str, SignalRule], ...]:
        """The order for answers without a question: signals that are asked for come last, so that volunteers hide no other signal."""
        return tuple(sorted(self.ranked_signals, key=lambda item: item[0] in self.asked_for))

    @cached_property
    def asked_for(self) -> frozenset[str]:
        """Names of the signals that users are asked for; empty without [asking]."""
        if self.asking is None:
            return frozenset()
        return frozenset(self.asking.signals or (name for name, rule in self.signals.items() if rule.means == "thumbs"))

    @cached_property
    def hash(self) -> str:
        """Twelve hex digits over everything that affects a score: all fields except [gate], [credit], [learning] and exploring. Every score carries it."""
        content = json.dumps(
            self.model_dump(
                mode="json", exclude={"gate": True, "credit": True, "learning": True, "sampling": {"explore"}}
            ),
            sort_keys=True,
        )
        return hashlib.blake2b(content.encode(), digest_size=6).hexdigest()

    @property
    def folder(self) -> str:
        """Folder of the task file; paths in the file are relative to it."""
        return str(self._source.path.parent) if self._source.path else "."

    def where(self, *location: int | str) -> str:
        """`file:line` of a field, or of its closest parent in the file; for messages."""
        return self._source.where(location)

    def signal(self, name: str) -> SignalRule:
        """The rule of a declared signal. Raises InvalidValue: the task does not declare this signal."""
        if name not in self.signals:
            raise InvalidValue(
                f"task {self.name!r} declares no signal {name!r}; it has {sorted(self.signals)}", param="name"
            )
        return self.signals[name]
