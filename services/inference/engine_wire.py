"""What the engine says, read. Pure: vLLM's completions dialect, with the versions beside the tokens."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from contracts.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    MillraceError,
    Unavailable,
    UnknownModel,
    VersionNotResident,
)
from contracts.records import Span
from services.inference.answer import Token

_SERVER_ERROR = 500
_REFUSALS = {kind.code: kind for kind in (ContextLengthExceeded, UnknownModel, VersionNotResident, InvalidRequest)}


class System(msgspec.Struct, frozen=True):
    """What made the tokens, beside the weights."""

    engine: str
    dtype: str | None


class Problem(msgspec.Struct, frozen=True):
    """Why an arm does not hold the version it is pointed at, or nobody knows where it is pointed (`version` None)."""

    version: int | None
    code: str
    message: str


class Health(msgspec.Struct, frozen=True):
    """What the engine says of itself: the version and the problem of each arm."""

    status: str
    versions: dict[str, int | None] = {}
    problems: dict[str, Problem] = {}


class Piece(NamedTuple):
    """What the engine made since the last piece. Span starts count tokens of the whole answer."""

    tokens: list[Token]
    spans: list[Span]
    finish_reason: Literal["stop", "length"] | None


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float]


class _Choice(msgspec.Struct):
    token_ids: list[int] = []
    logprobs: _Logprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None


class _Failure(msgspec.Struct):
    message: str = "no reason given"
    code: str | int | None = None
    param: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    spans: list[Span] = []
    system: System | None = None
    error: _Failure | None = None


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_EVENT = msgspec.json.Decoder(_Event)


def read_event(data: bytes, offset: int) -> tuple[Piece, System | None]:
    """One event of a stream whose first token is number `offset` of the answer.

    Raises:
        Unavailable: it says that the engine failed.
    """
    event = _EVENT.decode(data)
    if event.error is not None:
        raise Unavailable(f"the engine failed: {event.error.message}")
    choice = event.choices[0]
    logprobs = choice.logprobs.token_logprobs if choice.logprobs else []
    tokens = [Token(token_id, logprob) for token_id, logprob in zip(choice.token_ids, logprobs, strict=True)]
    spans = [Span(offset + span.start, span.version) for span in event.spans]
    return Piece(tokens, spans, choice.finish_reason), event.system


def read_models(content: bytes) -> list[str]:
    """The ids of a list of models."""
    return [model.id for model in msgspec.json.decode(content, type=_Models).data]


def read_health(content: bytes) -> Health:
    """The body of /health.

    Raises:
        Unavailable: it is not one of ours.
    """
    try:
        return msgspec.json.decode(content, type=Health)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the engine does not say how it is: {error}") from error


def read_refusal(status: int, content: bytes) -> MillraceError:
    """The error that an answer other than 200 stands for."""
    try:
        failure = msgspec.json.decode(content, type=_Event).error or _Failure()
    except msgspec.DecodeError:
        failure = _Failure(content.decode(errors="replace")[:200])
    if status >= _SERVER_ERROR:
        return Unavailable(f"the engine answered {status}: {failure.message}")
    kind = _REFUSALS.get(str(failure.code), InvalidRequest)
    return kind(failure.message, param=failure.param)
