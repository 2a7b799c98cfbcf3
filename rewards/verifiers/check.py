"""What a verifier is: built once from the task file's `config`, then a function of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from contracts.errors import InvalidTask
from contracts.records import Fault, ScoreStatus
from contracts.tasks.section import TaskSection, mistake_of

ConfigType = TypeVar("ConfigType", bound=TaskSection)
NO_METADATA: Mapping[str, str] = {}


class Check(NamedTuple):
    """What a verifier found. `value` is in [0, 1], and None unless `status` is scored."""

    value: float | None
    status: ScoreStatus = "scored"
    fault: Fault = "none"
    reason: str = ""
    propensity: float = 1.0
    """Probability with which it was asked for, where that was a draw."""


class Answer(NamedTuple):
    """What a verifier may look at."""

    text: str
    metadata: Mapping[str, str] = NO_METADATA
    messages: Sequence[Mapping[str, Any]] = ()
    """The prompt, as the app sent it."""
    finish_reason: str = "stop"
    key: str = ""
    """The sample key; draws that must come out the same again are made from it."""
    siblings: Sequence[str] = ()
    """Texts of the other choices of the same completion."""

    @property
    def reference(self) -> str | None:
        """What the app knows to be right, if it said so: `metadata.reference`."""
        return self.metadata.get("reference")


Verifier = Callable[[Answer], Check]


class BatchVerifier(NamedTuple):
    """One that looks at many answers at once, because calls cost or can run side by side. It answers each, in order."""

    check_all: Callable[[Sequence[Answer]], Sequence[Check]]


class Context(NamedTuple):
    """What a builder may want to know besides its config."""

    deadline_seconds: float = 5.0
    folder: str = "."
    """The task file's, for paths in a config."""


Builder = Callable[[Mapping[str, Any], Context], Verifier | BatchVerifier]
"""Raises InvalidTask, with `param` naming the field of the config, if it is not what the kind needs."""


def right(reason: str = "") -> Check:
    """The answer passes."""
    return Check(1.0, reason=reason)


def wrong(reason: str) -> Check:
    """The model's fault: it trains at the worst value."""
    return Check(0.0, fault="model", reason=reason[:200])


def unlabelled(reason: str) -> Check:
    """There is nothing to say, for example without a reference."""
    return Check(None, status="unlabelled", reason=reason[:200])


def bad_reference(reason: str) -> Check:
    """The app's mistake: no reward, and nobody learns from it."""
    return Check(None, status="unscored", fault="user", reason=reason[:200])


def broken(reason: str) -> Check:
    """Our own fault: no reward, out of the batch and of every baseline."""
    return Check(None, status="unscored", fault="infra", reason=reason[:200])


def read_config(kind: type[ConfigType], config: Mapping[str, Any]) -> ConfigType:
    """A verifier's own settings.

    Raises:
        InvalidTask: `param` names the field.
    """
    try:
        return kind.model_validate(dict(config))
    except ValidationError as error:
        first = error.errors()[0]
        known = f"; there are {', '.join(kind.model_fields)}" if _is_unknown_field(first) else ""
        raise InvalidTask(mistake_of(first) + known, param=".".join(str(part) for part in first["loc"])) from error


def _is_unknown_field(error: Mapping[str, Any]) -> bool:
    return error["type"] == "extra_forbidden" and len(error["loc"]) == 1
