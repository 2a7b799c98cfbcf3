"""vLLM, as the rest of Millrace knows it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engines.kind import EngineKind, Followed
from engines.token_route import PATH, reader_of, route_body
from engines.vllm.deliver import VllmServer
from engines.vllm.launch import check_policy, choose
from engines.vllm.settings import VllmSettings
from engines.wire import EngineRequest, Wire


def vllm_body(request: EngineRequest, made: Sequence[int] = ()) -> bytes:
    """The JSON body of a request whose answer has the tokens `made` already. A server has one model, so none is named."""
    return msgspec.json.encode(route_body(request, made) | {"stream_options": {"include_usage": True}})


def can_continue(request: EngineRequest) -> bool:
    """VLLM takes the tokens so far for a part of the prompt: it would begin a grammar again and forget them in its penalties."""
    sampling = request.sampling
    return not (request.constraint is not None or sampling.frequency_penalty or sampling.presence_penalty)


KIND = EngineKind(
    Wire(PATH, vllm_body, reader_of, can_continue, tells_usage_last=True),
    start_seconds=900.0,  # it imports for a minute, one server after the other
    followed=Followed(VllmSettings, "engines.vllm.follow", choose, check_policy, VllmServer),
    demo_seconds=480.0,  # and costs more per token on CPU
)
