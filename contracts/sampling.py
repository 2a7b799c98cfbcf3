"""How the tokens of an answer were sampled: from which distribution, by which version, through which experts."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Constraint = Literal["", "json_object", "json_schema", "tool"]


class Span(msgspec.Struct, frozen=True):
    """Tokens from `start` (inclusive) to the next span's start were sampled by `version`."""

    start: int
    version: int


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The distribution actually sampled from. `temperature` 0 is greedy."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int
    seed: int | None = None
    """Of the request; each choice derives its own seed from it. Answers with equal seeds are one draw, not several."""
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    """Token id to what is added to its logit."""
    constraint: Constraint = ""
    """The grammar that limited the tokens; empty without one."""
    raw_logprobs: bool = False
    """True if the engine reports log-probs of the model before temperature, filters, biases, penalties and grammar."""

    @property
    def in_full(self) -> dict[str, Any]:
        """For answers, which name defaults too."""
        return msgspec.structs.asdict(self)

    @property
    def is_truncated(self) -> bool:
        """True if unlikely tokens were left out: the trainer then needs the support of each token, see contracts/packing.py."""
        return self.temperature > 0 and (self.top_p < 1.0 or self.top_k != 0 or self.min_p != 0)

    @property
    def off_support(self) -> str:
        """Why the trainer cannot reproduce the distribution sampled from; empty if it can."""
        if self.temperature <= 0:
            return "greedy"
        if self.logit_bias:
            return "biased"
        if self.repetition_penalty != 1.0 or self.frequency_penalty != 0 or self.presence_penalty != 0:
            return "penalised"
        if self.constraint:
            return "constrained"
        return "raw_logprobs" if self.raw_logprobs and (self.temperature != 1.0 or self.is_truncated) else ""


class ExpertShape(msgspec.Struct, frozen=True, array_like=True):
    """The dimensions of recorded expert choices."""

    num_tokens: int
    """Tokens that went through the model: prompt and completion, without the last one."""
    num_layers: int
    """Layers with experts."""
    num_chosen: int
    """Experts per token and layer."""
