"""Reads what an engine says beside its answers: its state, its refusals. Pure."""

from __future__ import annotations

import msgspec

from contracts.errors import (
    ContextLengthExceeded,
    EngineFailed,
    EngineRestarted,
    GrammarStuck,
    InvalidRequest,
    InvalidSchema,
    MillraceError,
    Overloaded,
    Unavailable,
    UnknownModel,
    Unsupported,
    VersionNotResident,
)
from engines.token_route import UNREADABLE, EngineFault, shown
from engines.wire import System

_CODES = (
    ContextLengthExceeded, UnknownModel, VersionNotResident, InvalidRequest, InvalidSchema, GrammarStuck, Unsupported,
)  # fmt: skip
_REFUSALS = {kind.code: kind for kind in _CODES}
_NOT_TAKEN = (Unavailable.code, EngineRestarted.code)
_BAD_REQUEST, _KEYLESS, _TOO_LARGE, _UNPROCESSABLE, _TOO_MANY, _UNAVAILABLE = 400, (401, 403), 413, 422, 429, 503
_LONGEST_WAIT_SECONDS = 60
_SHOWN_CHARACTERS = 300


class RequestNotTaken(Unavailable):
    """The engine answered that it does not serve now."""


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


class _Refusal(msgspec.Struct):
    error: EngineFault


def read_health(content: bytes) -> Health:
    """The body of /state.

    Raises:
        Unavailable: it cannot be read.
    """
    try:
        return msgspec.json.decode(content, type=Health)
    except UNREADABLE as error:
        raise Unavailable(f"the engine's state cannot be read: {error}") from error


def read_refusal(status: int, retry_after: bytes, content: bytes) -> MillraceError:
    """The error for a response other than 200. `Unavailable` means that the engine did not take the request."""
    try:
        failure = msgspec.json.decode(content, type=_Refusal).error
    except UNREADABLE:
        failure = EngineFault(shown(content))
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
        return RequestNotTaken(f"the engine answered {status}: {message}")
    kind = _REFUSALS.get(code, InvalidRequest if status in (_BAD_REQUEST, _TOO_LARGE, _UNPROCESSABLE) else None)
    if _BAD_REQUEST <= status < 500 and kind is not None:  # noqa: PLR2004 the HTTP class boundary
        return kind(message, param=failure.param)
    return EngineFailed(f"the engine answered {status}: {message}")


def _seconds(retry_after: bytes) -> int:
    """Whole seconds, from 1 to 60; a date or anything else counts as 1."""
    text = retry_after.strip()
    return min(_LONGEST_WAIT_SECONDS, max(1, int(text))) if text.isdigit() and len(text) < 10 else 1  # noqa: PLR2004 digits
