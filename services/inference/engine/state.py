"""What an engine says: its state, its refusals, and an answer as engines make it (what one made is in the prompt of the next). Pure."""

from __future__ import annotations

import msgspec

from contracts import errors
from contracts.sampling import Span
from engines.token_route import UNREADABLE, EngineFault, shown
from engines.wire import EngineRequest, Piece, System, new_spans

_CODES = (
    errors.ContextLengthExceeded, errors.UnknownModel, errors.VersionNotResident, errors.InvalidRequest, errors.InvalidSchema,
    errors.GrammarStuck, errors.Unsupported,
)  # fmt: skip
_REFUSALS = {kind.code: kind for kind in _CODES}
_NOT_TAKEN = (errors.Unavailable.code, errors.EngineRestarted.code)
_BAD_REQUEST, _KEYLESS, _TOO_LARGE, _UNPROCESSABLE, _TOO_MANY, _UNAVAILABLE = 400, (401, 403), 413, 422, 429, 503
_UNKNOWN_NAME = "404"
"""What vLLM says of an adapter that it does not hold."""
_LONGEST_WAIT_SECONDS = 60
_SHOWN_CHARACTERS = 300


class RequestNotTaken(errors.Unavailable):
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


class _Refusal(msgspec.Struct):
    error: EngineFault


def read_health(content: bytes) -> Health:
    """The body of /state. Raises Unavailable: it cannot be read."""
    try:
        return msgspec.json.decode(content, type=Health)
    except UNREADABLE as error:
        raise errors.Unavailable(f"the engine's state cannot be read: {error}") from error


def read_refusal(status: int, retry_after: bytes, content: bytes) -> errors.MillraceError:
    """The error for a response other than 200. `Unavailable` means that the engine did not take the request."""
    try:
        failure = msgspec.json.decode(content, type=_Refusal).error
    except UNREADABLE:
        failure = EngineFault(shown(content))
    message, code = failure.message[:_SHOWN_CHARACTERS], str(failure.code)
    if status == _TOO_MANY:
        seconds = _seconds(retry_after)
        return errors.Overloaded(f"the engine has too much to do: {message}; try again in {seconds} s", seconds)
    if status in _KEYLESS:
        remedy = "give both the same key: engine.key of the home, or MILLRACE_ENGINE_KEY"
        return errors.EngineFailed(f"the engine refuses this process's key ({status}); {remedy}")
    if status == _UNAVAILABLE and code in _NOT_TAKEN:
        return RequestNotTaken(f"the engine answered {status}: {message}")
    if (code, failure.param) == (_UNKNOWN_NAME, "model"):
        return RequestNotTaken(f"the engine does not hold what it is said to, as after a start: {message}")
    kind = _REFUSALS.get(code, errors.InvalidRequest if status in (_BAD_REQUEST, _TOO_LARGE, _UNPROCESSABLE) else None)
    if _BAD_REQUEST <= status < 500 and kind is not None:  # noqa: PLR2004 the HTTP class boundary
        return kind(message, param=failure.param)
    return errors.EngineFailed(f"the engine answered {status}: {message}")


def _seconds(retry_after: bytes) -> int:
    """Whole seconds, from 1 to 60; a date or anything else counts as 1."""
    text = retry_after.strip()
    return min(_LONGEST_WAIT_SECONDS, max(1, int(text))) if text.isdigit() and len(text) < 10 else 1  # noqa: PLR2004 digits


class Progress:
    """The tokens of one answer so far, and which versions made them: `begin` before each engine's work, `add` with each of its pieces."""

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.made: list[int] = []
        self.spans: list[Span] = []
        self._began_at = 0
        self._is_told = True
        self._is_lost = False
        self._system: System | None = None

    @property
    def is_full(self) -> bool:
        """True if the answer has all tokens that were asked for."""
        return len(self.made) >= self.request.sampling.max_tokens

    def begin(self, system: System | None) -> None:
        """An engine begins to work on the answer. `system`: what it is, if that is known."""
        self._note_loss()
        self._began_at, self._is_told, self._system = len(self.made), False, system

    def add(self, piece: Piece) -> Piece:
        """Take a piece, with spans as the engine told them; returns it with those that are new. Raises EngineFailed: no answer can have these."""
        self.made += [token.id for token in piece.tokens]
        if len(self.made) > (longest := self.request.sampling.max_tokens):
            raise errors.EngineFailed(f"the engine made more than the {longest} tokens that were requested")
        if not self.made:
            raise errors.EngineFailed("the engine ended an answer without a token")
        if piece.spans:
            if not self._is_told and piece.spans[0].start != self._began_at:
                self._is_lost = True
            self._is_told = True
            spans = new_spans(self.spans, piece.spans)
            self.spans += spans
            piece = piece._replace(spans=spans)
        if piece.system is None and self._system is not None:
            piece = piece._replace(system=self._system)
        self._system = None
        if piece.num_cached is not None:  # an engine that continues an answer may have had more than the prompt
            piece = piece._replace(num_cached=min(piece.num_cached, len(self.request.prompt_ids)))
        if piece.finish_reason is not None:
            self._note_loss()
            if self._began_at > 0 and piece.experts is not None:
                piece = piece._replace(experts=None)  # those of the first part were computed by another engine
        return piece._replace(lost_versions=True) if self._is_lost else piece

    def cut(self) -> Piece:
        """The last piece of an answer that has all its tokens, although the engine did not end it."""
        self._note_loss()
        return Piece([], [], "length", lost_versions=self._is_lost)

    def _note_loss(self) -> None:
        # Versions that were not told before an engine was lost are never told.
        if not self._is_told and len(self.made) > self._began_at:
            self._is_lost = True
