"""vLLM, as the rest of Millrace knows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from contracts.errors import EngineFailed
from contracts.sampling import Span
from engines.kind import EngineKind, Followed
from engines.token_route import PATH, reader_of, route_body
from engines.vllm.adapters import check_facts
from engines.vllm.deliver import VllmServer
from engines.vllm.launch import check_policy, choose
from engines.vllm.settings import VllmSettings
from engines.wire import EngineRequest, Piece, Wire, adapter_name


def vllm_body(request: EngineRequest, made: Sequence[int] = ()) -> bytes:
    """The JSON body of a request whose answer has the tokens `made` already. A server that holds one version is not told its name."""
    body = route_body(request, made) | {"stream_options": {"include_usage": True}}
    if request.adapter is not None:
        body["model"] = adapter_name(request.model.partition("@v")[0], request.adapter)
    return msgspec.json.encode(body)


def vllm_reader(request: EngineRequest, offset: int) -> Callable[[bytes], Piece]:
    """As `reader_of`. vLLM labels tokens by the weights of the base: with an adapter, their version is the name that was asked for."""
    read = reader_of(request, offset)
    return read if request.adapter is None else partial(_labelled, read, Span(offset, request.adapter))


def _labelled(read: Callable[[bytes], Piece], span: Span, data: bytes) -> Piece:
    piece = read(data)
    if any(told.version != 0 for told in piece.spans):
        raise EngineFailed(
            f"the base under the adapter v{span.version} is v{piece.spans[-1].version}, and not version 0"
        )
    return piece._replace(spans=[span] if piece.tokens else [])


def can_continue(request: EngineRequest) -> bool:
    """VLLM takes the tokens so far for a part of the prompt: it would begin a grammar again and forget them in its penalties."""
    sampling = request.sampling
    return not (request.constraint is not None or sampling.frequency_penalty or sampling.presence_penalty)


KIND = EngineKind(
    Wire(PATH, vllm_body, vllm_reader, can_continue, tells_usage_last=True),
    start_seconds=900.0,  # it imports for a minute, one server after the other
    followed=Followed(VllmSettings, "engines.vllm.follow", choose, check_policy, check_facts, VllmServer),
    demo_seconds=480.0,  # and costs more per token on CPU
)
