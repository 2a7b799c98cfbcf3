"""The engine's own answers to requests it cannot finish; both are kinds of the errors in contracts."""

from __future__ import annotations

from contracts.errors import InvalidRequest, Unavailable


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer together are longer than the policy's context."""

    code = "context_length_exceeded"


class EngineRestarted(Unavailable):
    """The generation loop died under the request: nothing of it was kept, ask again."""

    code = "engine_restarted"
