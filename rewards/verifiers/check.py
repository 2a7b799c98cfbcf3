"""The interface of a verifier: it is built once from the task file's `config`, then called with each answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from contracts.answers.reasoning import without_reasoning
from contracts.errors import InvalidTask
from contracts.records import Fault, ScoreStatus
from contracts.tasks.section import TaskSection, mistake_of

ConfigType = TypeVar("ConfigType", bound=TaskSection)
UNVERIFIABLE = "unverifiable"
"""How the reason begins where answer and reference are read, and neither equal nor proven to differ."""
NO_METADATA: Mapping[str, str] = {}


class Check(NamedTuple):
    """A verifier's finding. `value` is in [0, 1], and None unless `status` is scored."""

    value: float | None
    status: ScoreStatus = "scored"
    fault: Fault = "none"
    reason: str = ""
    propensity: float = 1.0
    """The probability that this check was drawn, for checks that run on a random share of answers."""


class ParsedAnswer(NamedTuple):
    """What inference read from the tokens of an answer to a request that offered tools."""

    text: str
    """Without the calls."""
    calls: Sequence[Mapping[str, Any]]
    """In OpenAI's form."""


class Answer(NamedTuple):
    """The data that a verifier may use."""

    text: str
    metadata: Mapping[str, str] = NO_METADATA
    messages: Sequence[Mapping[str, Any]] = ()
    """The prompt, as the app sent it."""
    finish_reason: str = "stop"
    key: str = ""
    """The sample key. It seeds random draws, so that a replay repeats them."""
    siblings: Sequence[str] = ()
    """Texts of the other choices of the same completion."""
    parsed: ParsedAnswer | None = None
    """None if the request offered no tools, so that a call could only be text."""
    is_imported: bool = False
    """True if it was logged elsewhere, before Millrace."""

    @property
    def reference(self) -> str | None:
        """The right answer, `metadata.reference`, if the app sent one."""
        return self.metadata.get("reference")


Verifier = Callable[[Answer], Check]
Explain = Callable[[Answer, Mapping[str, Any]], Mapping[str, str]]
"""What a verifier's module may have as `explain`: what it reads in an answer without its reasoning and in the reference, by name."""


class BatchVerifier(NamedTuple):
    """A verifier that gets many answers at once, because calls are expensive or can run in parallel. It returns one check for each answer, in order."""

    check_all: Callable[[Sequence[Answer]], Sequence[Check]]


class Context(NamedTuple):
    """What a builder gets besides its config."""

    deadline_seconds: float = 5.0
    folder: str = "."
    """The task file's folder. Paths in a config are relative to it."""


Verifying = TypeVar("Verifying", Verifier, BatchVerifier)
Builder = Callable[[Mapping[str, Any], Context], Verifier | BatchVerifier]
"""Raises InvalidTask if the config is wrong for this kind; `param` names the field."""


def right(reason: str = "") -> Check:
    """The answer passes."""
    return Check(1.0, reason=reason)


def wrong(reason: str) -> Check:
    """The model's fault: the answer gets the worst value."""
    return Check(0.0, fault="model", reason=reason[:200])


def unlabelled(reason: str) -> Check:
    """No judgement is possible, for example without a reference."""
    return Check(None, status="unlabelled", reason=reason[:200])


def bad_reference(reason: str) -> Check:
    """The app's mistake: no reward, and no model is trained on the sample."""
    return Check(None, status="unscored", fault="user", reason=reason[:200])


def broken(reason: str) -> Check:
    """Our own fault: no reward; the sample stays out of the batch and of every baseline."""
    return Check(None, status="unscored", fault="infra", reason=reason[:200])


class BadReference(ValueError):
    """`metadata.reference` cannot be used. The message says why."""


def after_reasoning(verifier: Verifying) -> Verifying:
    """A verifier that sees answers without their reasoning. One whose reasoning is never closed is wrong, whatever it says."""
    if isinstance(verifier, BatchVerifier):
        check_all = verifier.check_all

        def checked_all(answers: Sequence[Answer]) -> list[Check]:
            spoken = [_spoken(answer) for answer in answers]
            found = check_all(
                [answer or given._replace(text="") for answer, given in zip(spoken, answers, strict=True)]
            )
            return [_unless_open(answer, check) for answer, check in zip(spoken, found, strict=True)]

        return BatchVerifier(checked_all)

    def checked(answer: Answer) -> Check:
        spoken = _spoken(answer)
        return _unless_open(spoken, verifier(spoken or answer._replace(text="")))

    return checked


def _spoken(answer: Answer) -> Answer | None:
    text = without_reasoning(answer.text)
    if text is None or text == answer.text:
        return None if text is None else answer
    return answer._replace(text=text.strip("\n"))


def _unless_open(spoken: Answer | None, check: Check) -> Check:
    """What is missing or wrong beside the answer is said first."""
    return wrong("its reasoning is never closed") if spoken is None and check.value is not None else check


def with_reference(check: Callable[[Answer, str], Check]) -> Verifier:
    """A verifier that gives each answer, without its reasoning, and its reference to `check`, which may raise BadReference."""

    def checked(answer: Answer) -> Check:
        if answer.reference is None:
            return unlabelled("no metadata.reference")
        try:
            return check(answer, answer.reference)
        except BadReference as error:
            return bad_reference(str(error))

    return after_reasoning(checked)


def read_config(kind: type[ConfigType], config: Mapping[str, Any]) -> ConfigType:
    """Parse a verifier's own settings. Raises InvalidTask: `param` names the field."""
    try:
        return kind.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors()[0]
        is_unknown = first["type"] == "extra_forbidden" and len(first["loc"]) == 1
        known = f"; there are {', '.join(kind.model_fields)}" if is_unknown else ""
        raise InvalidTask(mistake_of(first) + known, param=".".join(str(part) for part in first["loc"])) from error
