"""How the tokens of one sequence are sampled: what its request asked for, and what is remembered from token to token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import torch


class SamplingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Checked options of one request, as vLLM defines them. `temperature` 0 is greedy."""

    temperature: float = 1.0
    top_k: int = 0
    """0 is off."""
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    logit_bias: dict[int, float] = {}
    """Token id to what is added to its logit."""
    repetition_penalty: float = 1.0
    """Divides positive logits, and multiplies negative ones, of tokens in prompt or answer (Keskar et al. 2019, arXiv:1909.05858)."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time that it stands in the answer."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token of the answer."""
    num_logprobs: int = 0
    """How many log-probs are reported for each token: the sampled one's first, then those of the likeliest others."""

    @property
    def is_truncated(self) -> bool:
        """True if top-k or top-p leaves out tokens."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1)

    @property
    def is_penalised(self) -> bool:
        """True if earlier tokens change the logits."""
        return self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0


class Matcher(Protocol):
    """The state of a grammar: llguidance's `LLMatcher`."""

    def compute_bitmask(self) -> bytes:
        """The tokens allowed next, one bit per token id, in words of 32 bits, lowest first."""

    def consume_token(self, sampled_token: int) -> bool:
        """Advance by one token; False if the grammar does not allow it."""

    def get_error(self) -> str:
        """Why the grammar cannot go on; empty if it can."""


class SequenceSampling:
    """The sampling of one sequence.

    It is made with the request and advanced on the generation thread after each token, by `sampler.sample` alone.

    Args:
        options: of the request.
        token_ids: the prompt [T].
        num_made: how many of the last tokens of the prompt belong to the answer: it continues after a restart.
        matcher: the grammar, already advanced by those tokens; None: there is none.
    """

    def __init__(
        self,
        options: SamplingOptions,
        token_ids: Sequence[int],
        *,
        num_made: int = 0,
        matcher: Matcher | None = None,
    ) -> None:
        self.options = options
        self.matcher = matcher
        self.num_tokens = len(token_ids)
        """Tokens of prompt and answer so far: the position of the next token."""
        self.tops: list[list[tuple[int, float]]] = []
        """For each token sampled here: its id and log-prob, then those of the likeliest others; empty if none were asked for."""
        self.error = ""
        """Why the answer cannot go on; empty if it can."""
        self.is_plain = matcher is None and options == _PLAIN
        self.is_remembered = matcher is not None or options.is_penalised or options.num_logprobs > 0
        self._prompt_ids, self._made_ids = list(token_ids), list(token_ids[len(token_ids) - num_made :])
        self._counts: torch.Tensor | None = None
        self._seen: torch.Tensor | None = None
        self._bias: tuple[torch.Tensor, torch.Tensor] | None = None

    def __deepcopy__(self, _memo: dict[int, Any]) -> SequenceSampling:
        """The same object: the manager copies the arguments of a request that it evicts and takes in again."""
        return self

    def penalised(self, num_ids: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """How often each token stands in the answer, float32 [V], and whether it stands in prompt or answer, bool [V]."""
        if self._counts is None or self._seen is None:
            made = torch.tensor(self._made_ids, dtype=torch.long, device=device)
            self._counts = torch.bincount(made, minlength=num_ids).float()
            self._seen = torch.zeros(num_ids, dtype=torch.bool, device=device)
            self._seen[torch.tensor(self._prompt_ids, dtype=torch.long, device=device)] = True
        return self._counts, self._seen

    def bias(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids [K] and what is added to their logits, float32 [K]."""
        if self._bias is None:
            ids, values = list(self.options.logit_bias), list(self.options.logit_bias.values())
            self._bias = torch.tensor(ids, device=device), torch.tensor(values, dtype=torch.float32, device=device)
        return self._bias

    def remember(self, token_id: int) -> None:
        """Advance counts and grammar by a sampled token."""
        if self._counts is not None and self._seen is not None:
            self._counts[token_id] += 1
            self._seen[token_id] = True
        if self.matcher is not None and not self.error and not self.matcher.consume_token(token_id):
            self.error = f"the grammar does not allow token {token_id}: {self.matcher.get_error()}"


_PLAIN = SamplingOptions()
