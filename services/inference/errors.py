"""What the endpoint refuses by a code of its own; both are kinds of the errors in contracts."""

from __future__ import annotations

from contracts.errors import InvalidRequest


class Unsupported(InvalidRequest):
    """Part of OpenAI's API, and not of ours: said aloud instead of ignored."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidRequest):
    """Prompt and answer together are longer than the policy's context."""

    code = "context_length_exceeded"
