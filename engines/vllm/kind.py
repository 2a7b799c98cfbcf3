"""vLLM, as the rest of Millrace knows it."""

from __future__ import annotations

from engines.kind import EngineKind, Followed
from engines.vllm.deliver import VllmServer
from engines.vllm.launch import check_policy, choose
from engines.vllm.wire import VLLM_WIRE

KIND = EngineKind(
    VLLM_WIRE,
    start_seconds=900.0,  # it imports for a minute, one server after the other
    followed=Followed("engines.vllm.follow", choose, check_policy, VllmServer),
    demo_seconds=480.0,  # and costs more per token on CPU
)
