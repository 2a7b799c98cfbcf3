"""Reads the responses of the engine: vLLM's completions dialect, with the version of each token. Pure.

Nothing is filled in: a token needs its id and a finite log-prob, else the answer is refused.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

import msgspec

from contracts.errors import (
    ContextLengthExceeded,
    EngineFailed,
    EngineRestarted,
    InvalidRequest,
    MillraceError,
    Overloaded,
    Unavailable,
    UnknownModel,
    VersionNotResident,
)
from contracts.sampling import Span
from services.inference.answer import SampledToken

MOST_LINE_BYTES = 2**20
_CODES = (ContextLengthExceeded, UnknownModel, VersionNotResident, InvalidRequest)
_REFUSALS = {kind.code: kind for kind in _CODES}
_NOT_TAKEN = (Unavailable.code, EngineRestarted.code)
_BAD_REQUEST, _KEYLESS, _TOO_LARGE, _UNPROCESSABLE, _TOO_MANY, _UNAVAILABLE = 400, (401, 403), 413, 422, 429, 503
_LONGEST_WAIT_SECONDS = 60
_SHOWN_CHARACTERS = 300
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_FIELDS = (b"event:", b"id:", b"retry:")

TokenId = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
LogProb = Annotated[float, msgspec.Meta(ge=-1e6, le=1e-2)]
"""The logarithm of a probability; anything above rounding error is wrong."""


class System(msgspec.Struct, frozen=True):
    """The system that made the tokens: everything except the weights."""

    engine: str
    dtype: str | None


class ArmProblem(msgspec.Struct, frozen=True):
    """Why an arm does not hold its assigned version; `version` None: the assignments could not be read."""

    version: int | None
    code: str
    message: str


class Health(msgspec.Struct, frozen=True):
    """The state of the engine, with the version and the problem of each arm. `instance` changes with each start."""

    status: str
    versions: dict[str, int | None] = {}
    problems: dict[str, ArmProblem] = {}
    instance: str | None = None
    engine: str = ""
    dtype: str | None = None

    @property
    def system(self) -> System:
        """The part that is logged with every answer."""
        return System(self.engine, self.dtype)


class Piece(NamedTuple):
    """The tokens since the last piece. Span starts count tokens of the whole answer."""

    tokens: list[SampledToken]
    spans: list[Span]
    finish_reason: Literal["stop", "length"] | None


class _Logprobs(msgspec.Struct):
    token_logprobs: list[LogProb] = []


class _Choice(msgspec.Struct):
    token_ids: list[TokenId] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None
    text: str | None = None


class _Failure(msgspec.Struct):
    message: str = "no reason given"
    code: str | int | None = None
    param: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    spans: list[Span] = []
    system: System | None = None
    error: _Failure | None = None


class _Refusal(msgspec.Struct):
    error: _Failure


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


_EVENT = msgspec.json.Decoder(_Event)


def data_of(line: bytes) -> bytes | None:
    """The data of a line of server-sent events, without its line feed; None if the line has no data.

    Raises:
        EngineFailed: it is not such a line, or it is `[DONE]`, which must not come before the finish reason.
    """
    line = line.rstrip(b"\r")
    if line.startswith(b"data:"):
        data = line[5:].strip()
        if data == b"[DONE]":
            raise EngineFailed("the engine ended a stream before its answer")
        return data
    if not line or line.startswith((b":", *_FIELDS)):
        return None
    raise EngineFailed(f"the engine's stream has a line that is not an event: {_shown(line)}")


def read_event(data: bytes, offset: int) -> tuple[Piece, System | None]:
    """One event of a stream whose first token has number `offset` in the answer. An event may have no token.

    Raises:
        EngineRestarted: the engine reports that it lost the request.
        EngineFailed: the engine reports a failure, or the event cannot be used.
    """
    try:
        event = _EVENT.decode(data)
    except _UNREADABLE as error:
        raise EngineFailed(f"the engine sent an event that cannot be used: {error}: {_shown(data)}") from error
    if event.error is not None:
        kind = EngineRestarted if event.error.code == EngineRestarted.code else EngineFailed
        raise kind(f"the engine failed: {event.error.message[:_SHOWN_CHARACTERS]}")
    if len(event.choices) != 1:
        if event.choices:
            raise EngineFailed(f"the engine sent {len(event.choices)} choices to a request for one")
        return Piece([], [], None), event.system  # for example an event with the usage
    choice = event.choices[0]
    ids, logprobs = choice.token_ids or [], choice.logprobs.token_logprobs if choice.logprobs else []
    if len(ids) != len(logprobs) or (choice.text and not ids):
        raise EngineFailed(
            f"the engine sent {len(ids)} token ids with {len(logprobs)} log-probs"
            f"{' and text' if choice.text else ''}; each token needs its id and its log-prob"
        )
    spans = event.spans
    if spans:
        _check_spans(spans)
        spans = [Span(offset + span.start, span.version) for span in spans]
    return Piece(list(map(SampledToken, ids, logprobs)), spans, choice.finish_reason), event.system


def _check_spans(spans: list[Span]) -> None:
    if any(not (0 <= span.start < 2**31 and 0 <= span.version < 2**63) for span in spans) or any(
        later.start <= span.start for span, later in pairwise(spans)
    ):
        raise EngineFailed(f"the engine sent spans that are not valid: {_shown(msgspec.json.encode(spans))}")


def read_models(content: bytes) -> list[str]:
    """The ids of a list of models.

    Raises:
        EngineFailed: the list cannot be read.
    """
    try:
        return [model.id for model in msgspec.json.decode(content, type=_Models).data]
    except _UNREADABLE as error:
        raise EngineFailed(f"the engine's list of models cannot be read: {error}") from error


def read_health(content: bytes) -> Health:
    """The body of /state.

    Raises:
        Unavailable: it cannot be read.
    """
    try:
        return msgspec.json.decode(content, type=Health)
    except _UNREADABLE as error:
        raise Unavailable(f"the engine's state cannot be read: {error}") from error


def read_refusal(status: int, retry_after: bytes, content: bytes) -> MillraceError:
    """The error for a response other than 200. `Unavailable` means that the engine did not take the request."""
    try:
        failure = msgspec.json.decode(content, type=_Refusal).error
    except _UNREADABLE:
        failure = _Failure(_shown(content))
    message, code = failure.message[:_SHOWN_CHARACTERS], str(failure.code)
    if status == _TOO_MANY:
        seconds = _seconds(retry_after)
        return Overloaded(f"the engine has too much to do: {message}; try again in {seconds} s", seconds)
    if status in _KEYLESS:
        return EngineFailed(
            f"the engine refuses this process's key ({status}); give both the same key: engine.key of the home, or "
            "MILLRACE_ENGINE_KEY"
        )
    if status == _UNAVAILABLE and code in _NOT_TAKEN:
        return Unavailable(f"the engine answered {status}: {message}")
    kind = _REFUSALS.get(code, InvalidRequest if status in (_BAD_REQUEST, _TOO_LARGE, _UNPROCESSABLE) else None)
    if _BAD_REQUEST <= status < 500 and kind is not None:  # noqa: PLR2004 the HTTP class boundary
        return kind(message, param=failure.param)
    return EngineFailed(f"the engine answered {status}: {message}")


def _seconds(retry_after: bytes) -> int:
    """Whole seconds, from 1 to 60; a date or anything else counts as 1."""
    text = retry_after.strip()
    return min(_LONGEST_WAIT_SECONDS, max(1, int(text))) if text.isdigit() and len(text) < 10 else 1  # noqa: PLR2004 digits


def _shown(content: bytes) -> str:
    return content[:_SHOWN_CHARACTERS].decode(errors="replace")
