"""How each kind of engine is asked. vLLM's wire is everyone's, except SGLang's. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from contracts.engines import EngineKind
from contracts.sampling import Sampling
from services.inference.engine import sglang
from services.inference.engine.events import read_event
from services.inference.engine.wire import PATH, EngineRequest, Piece, System, request_body


class Wire(NamedTuple):
    """A route, and what goes over it."""

    path: str
    body: Callable[[EngineRequest, Sequence[int], str | None], bytes]
    """The body of a request, with the tokens made so far and what the engine calls its model."""
    reader: Callable[[EngineRequest, int], Callable[[bytes], Piece]]
    """Reads one stream, whose first token has this number in the answer."""
    system: Callable[[System, Sampling], System]
    """What is recorded of the engine for an answer that was sampled so."""
    tells_usage_last: bool = False
    """True: an event after the last token tells how much of the prompt was computed before."""


VLLM_WIRE = Wire(
    PATH,
    request_body,
    lambda request, offset: partial(
        read_event, offset=offset, num_top=request.num_top, with_support=request.with_support
    ),
    lambda system, _: system,
)
_UPSTREAM_WIRE = VLLM_WIRE._replace(body=partial(request_body, tells_usage=True), tells_usage_last=True)
_SGLANG_WIRE = Wire(sglang.PATH, sglang.sglang_body, sglang.SglangReader, sglang.sglang_system)


def wire_of(kind: EngineKind) -> Wire:
    """The wire of a kind of engine."""
    return {"millrace": VLLM_WIRE, "vllm": _UPSTREAM_WIRE, "sglang": _SGLANG_WIRE}[kind]
