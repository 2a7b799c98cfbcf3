"""What only vLLM is told on the route of all engines, and what it cannot do. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engines.token_route import PATH, reader_of, route_body
from engines.wire import EngineRequest, Wire


def vllm_body(request: EngineRequest, made: Sequence[int] = ()) -> bytes:
    """The JSON body of a request whose answer has the tokens `made` already. A server has one model, so none is named."""
    return msgspec.json.encode(route_body(request, made) | {"stream_options": {"include_usage": True}})


def can_continue(request: EngineRequest) -> bool:
    """VLLM takes the tokens so far for a part of the prompt: it would begin a grammar again and forget them in its penalties."""
    sampling = request.sampling
    return not (request.constraint is not None or sampling.frequency_penalty or sampling.presence_penalty)


VLLM_WIRE = Wire(PATH, vllm_body, reader_of, can_continue, tells_usage_last=True)
