"""Runs one verifier or judge of a task. Its own failure is never counted as the model's, and never as a score."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

from contracts.records import Fault, Score, ScoreStatus
from contracts.tasks.rewards import GraderRule, Role
from rewards.verifiers.check import Answer, Check, Verifier, broken

_MAX_REASON = 200
_STATUSES, _FAULTS = get_args(ScoreStatus), get_args(Fault)

CheckAll = Callable[[Sequence[Answer]], Sequence[Check]]


class Grader(NamedTuple):
    """A verifier or judge as its task declares it."""

    name: str
    role: Role
    weight: float
    label: str
    """Kind and version, with the hash of the task: every score carries it."""
    is_slow: bool
    """It calls a server or starts processes, so it runs in parallel with others, after the fast gates."""
    check_all: CheckAll
    is_for_imported: bool = True
    """False: imported answers are not shown to it."""

    @classmethod
    def of(cls, rule: GraderRule, label: str, check_all: CheckAll, *, is_slow: bool) -> Grader:
        """The grader of a rule. Only a component has a weight."""
        weight = rule.weight if rule.role == "component" else 0.0
        return cls(rule.name, rule.role, weight, label, is_slow, check_all)

    def score_all(self, answers: Sequence[Answer]) -> list[Score]:
        """One score for each answer. Never raises, except KeyboardInterrupt."""
        if not answers:
            return []
        started = time.perf_counter()
        checks = self._checks(answers)
        seconds = (time.perf_counter() - started) / len(answers)
        return [self._score(check, seconds) for check in checks]

    def skipped(self, reason: str) -> Score:
        """The score of an answer that the grader was not asked about."""
        return self._score(Check(None, status="unlabelled", reason=reason), 0.0)

    def _checks(self, answers: Sequence[Answer]) -> list[Check]:
        try:
            found: Any = self.check_all(answers)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 exits and panics of libraries too, which are not Exceptions
            if len(answers) == 1:
                return [_failed(error)]
            # One answer that breaks the grader must not cost the others their scores.
            return [self._checks([answer])[0] for answer in answers]
        is_list = isinstance(found, list | tuple) and not isinstance(found, Check)
        if is_list and len(found) == len(answers):
            return [check if _is_usual(check) else _examined(check) for check in found]
        # Never broadcast one value to many answers: all of them would be learned as the same. Nor ask one by one: a
        # grader that miscounts its answers may also mix them up.
        said = f"{len(found)} checks" if is_list else type(found).__name__
        return [broken(f"it answered {said} for {len(answers)} answers") for _ in answers]

    def _score(self, check: Check, seconds: float) -> Score:
        return Score(
            name=self.name,
            grader=self.label,
            value=check.value,
            weight=self.weight,
            status=check.status,
            fault=check.fault,
            # What no record or database can hold: a judge may have been tricked into quoting half a surrogate pair.
            reason=check.reason[:_MAX_REASON].encode(errors="replace").decode().replace("\0", "?"),
            propensity=check.propensity,
            seconds=round(seconds, 6),
        )


def each(verifier: Verifier) -> CheckAll:
    """Apply a verifier of single answers to many. An error on one answer leaves the others' scores alone."""

    def check(answer: Answer) -> Check:
        try:
            return verifier(answer)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 as above
            return _failed(error)

    return lambda answers: [check(answer) for answer in answers]


def _is_usual(check: object) -> bool:
    """A fast path for nearly all checks. NaN fails the comparison, so it goes the slow way."""
    if type(check) is not Check:
        return False
    value, status, fault, reason, propensity = check
    return (
        type(value) is float
        and 0.0 <= value <= 1.0
        and status == "scored"
        and fault in ("none", "model")
        and type(reason) is str
        and propensity == 1.0
    )


def _examined(check: object) -> Check:
    """The check that a grader returned, or a fault of its own if it is malformed: a score is a finite number in [0, 1]."""
    if not isinstance(check, Check):
        return broken(f"it answered {type(check).__name__}, not a Check")
    fields: tuple[Any, ...] = check
    value, status, fault, reason, propensity = fields
    said = ""
    if status not in _STATUSES or fault not in _FAULTS:
        said = f"status {status!r} and fault {fault!r}"
    elif not isinstance(reason, str):
        said = f"a reason that is {type(reason).__name__}, not a text"
    elif not isinstance(propensity, int | float) or not 0.0 < propensity <= 1.0:
        said = f"a propensity of {propensity!r}"
    elif status != "scored":
        return check._replace(value=None)
    elif fault not in {"none", "model"}:
        said = f"a score, and that it is the fault of {fault!r}"
    elif isinstance(value, bool) or not isinstance(value, int | float):
        said = f"{value!r}, not a number"
    elif not 0.0 <= value <= 1.0:  # True for NaN too
        # An int may have more digits than Python converts to text.
        said = f"{repr(value) if isinstance(value, float) else 'a whole number'}, which is not in [0, 1]"
    if said:
        return broken(f"it answered {said}")
    return check if type(value) is float else check._replace(value=float(value or 0.0))


def _failed(error: BaseException) -> Check:
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 its own message may raise
        said = type(error).__name__
    return broken(said)
