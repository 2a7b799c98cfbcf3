"""Samples one token for each sequence of a step, with everything that requests may ask for.

In: the logits of a step, and the sampling of each of its sequences. Out: tokens and their log-probs; the sequences remember
what the next token needs. Waits for: the device, if a sequence must know its token.

The order is vLLM's (v1/sample/sampler.py): grammar, biases, penalties, greedy, temperature, min-p, top-k, top-p. The log-prob of a
token is that of the distribution it was drawn from, after all of them (vLLM's `processed_logprobs`). A greedy token is drawn from a
distribution over itself, so its log-prob is 0. What no sequence of a step uses costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher

from services.engine.sampling import SamplingParams
from services.engine.seeded import gumbel_noise


class SequenceSampling:
    """The sampling of one sequence: made with the request, and advanced on the generation thread by `sample` alone.

    `token_ids`: the prompt [T]; the last `num_made` of them belong to the answer, which continues after a restart. `matcher`: the grammar,
    already advanced by those; None: there is none.
    """

    def __init__(
        self, params: SamplingParams, token_ids: Sequence[int], *, num_made: int = 0, matcher: LLMatcher | None = None
    ) -> None:
        self.params = params
        self.matcher = matcher
        self.num_tokens = len(token_ids)
        """Tokens of prompt and answer so far: the position of the next token."""
        self.num_logprobs = params.logprobs or 0
        self.tops: list[list[tuple[int, float]]] = []
        """For each token sampled here: its id and log-prob, then those of the likeliest others; empty if none were asked for."""
        self.error = ""
        """Why the answer cannot go on; empty if it can."""
        self.is_plain = matcher is None and params.is_plain
        self.is_remembered = matcher is not None or params.is_penalised or self.num_logprobs > 0
        self._prompt_ids, self._made_ids = list(token_ids), list(token_ids[len(token_ids) - num_made :])
        self._counts: tuple[torch.Tensor, torch.Tensor] | None = None
        self._biases = {int(token_id): value for token_id, value in (params.logit_bias or {}).items()}
        self._bias: tuple[torch.Tensor, torch.Tensor] | None = None

    def __deepcopy__(self, _memo: dict[int, Any]) -> SequenceSampling:
        """The same object: the manager copies the arguments of a request that it evicts and takes in again."""
        return self

    def penalised(self, num_ids: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """How often each token stands in the answer, float32 [V], and whether it stands in prompt or answer, bool [V]."""
        if self._counts is None:
            made = torch.tensor(self._made_ids, dtype=torch.long, device=device)
            seen = torch.zeros(num_ids, dtype=torch.bool, device=device)
            seen[torch.tensor(self._prompt_ids, dtype=torch.long, device=device)] = True
            self._counts = torch.bincount(made, minlength=num_ids).float(), seen
        return self._counts

    def bias(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids [K] and what is added to their logits, float32 [K]."""
        if self._bias is None:
            values = torch.tensor(list(self._biases.values()), dtype=torch.float32, device=device)
            self._bias = torch.tensor(list(self._biases), device=device), values
        return self._bias

    def remember(self, token_id: int) -> None:
        """Advance counts and grammar by a sampled token."""
        if self._counts is not None:
            counts, seen = self._counts
            counts[token_id] += 1
            seen[token_id] = True
        if self.matcher is not None and not self.error and not self.matcher.consume_token(token_id):
            self.error = f"the grammar does not allow token {token_id}: {self.matcher.get_error()}"


def sample(scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling]) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token for each row: ids, int64 [B], and their log-probs, float32 [B]. Raises RuntimeError if a logit is not a number.

    `scores_bv`: logits [B, V], float32; they may be changed.
    """
    if not all(sequence.is_plain for sequence in sequences):
        scores_bv = _processed(scores_bv, sequences)
    shares_bv = scores_bv.softmax(-1)
    token_ids = torch.multinomial(shares_bv, 1)[:, 0]
    logprobs = shares_bv.gather(1, token_ids[:, None])[:, 0].log()
    _draw_with_seeds(scores_bv, sequences, token_ids, logprobs)
    if any(sequence.is_remembered for sequence in sequences):
        ids = token_ids.tolist()
        _report_tops(scores_bv, sequences, ids, logprobs)
        for sequence, token_id in zip(sequences, ids, strict=True):
            sequence.remember(token_id)
    for sequence in sequences:
        sequence.num_tokens += 1
    return token_ids, logprobs


def _processed(scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling]) -> torch.Tensor:
    """The logits [B, V] whose softmax is drawn from."""
    params = [sequence.params for sequence in sequences]
    device = scores_bv.device

    def values(numbers: Sequence[float]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.float32, device=device)

    _mask(scores_bv, sequences)
    for row, sequence in enumerate(sequences):
        if sequence.params.logit_bias:
            scores_bv[row].index_add_(0, *sequence.bias(device))
    _penalise(scores_bv, sequences)
    if rows := [row for row, asked in enumerate(params) if asked.temperature == 0]:
        scores_bv[rows] = _likeliest(scores_bv[rows])
    temperatures = [asked.temperature or 1.0 for asked in params]
    if any(temperature != 1 for temperature in temperatures):
        scores_bv = scores_bv / values(temperatures)[:, None]
    if any(asked.min_p > 0 for asked in params):
        scores_bv = _min_p(scores_bv, values([asked.min_p for asked in params]))
    if rows := [row for row, asked in enumerate(params) if asked.is_truncated]:
        scores_bv[rows] = _truncated(scores_bv[rows], [sequences[row] for row in rows])
    return scores_bv


def _mask(scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling]) -> None:
    for row, sequence in enumerate(sequences):
        if sequence.matcher is None or sequence.error:
            continue
        bits = np.frombuffer(sequence.matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(bits, count=scores_bv.size(1), bitorder="little").astype(bool)
        # The rest of the error is llguidance's state.
        sequence.error = sequence.matcher.get_error().partition("\n")[0] or (
            "" if allowed.any() else "the grammar allows no token"
        )
        if not sequence.error:
            scores_bv[row].masked_fill_(torch.from_numpy(~allowed).to(scores_bv.device), -torch.inf)


def _penalise(scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling]) -> None:
    rows = [row for row, sequence in enumerate(sequences) if sequence.params.is_penalised]
    if not rows:
        return
    device, asked = scores_bv.device, [sequences[row].params for row in rows]
    made = [sequences[row].penalised(scores_bv.size(1), device) for row in rows]
    counts_bv, seen_bv = (torch.stack(parts) for parts in zip(*made, strict=True))
    penalties = [(one.repetition_penalty, one.frequency_penalty, one.presence_penalty) for one in asked]
    repetition, frequency, presence = torch.tensor(penalties, dtype=torch.float32, device=device).T[:, :, None]
    found = scores_bv[rows]
    found = torch.where(seen_bv, torch.where(found > 0, found / repetition, found * repetition), found)
    scores_bv[rows] = found - frequency * counts_bv - presence * (counts_bv > 0)


def _likeliest(scores_bv: torch.Tensor) -> torch.Tensor:
    """The largest logit alone; not a number stays not a number, so that a broken model is noticed."""
    best = scores_bv.argmax(-1, keepdim=True)
    return torch.full_like(scores_bv, -torch.inf).scatter_(1, best, scores_bv.gather(1, best))


def _min_p(scores_bv: torch.Tensor, shares_b: torch.Tensor) -> torch.Tensor:
    """Leave out tokens less likely than a share of the likeliest (Nguyen et al. 2024, arXiv:2407.01082).

    p < share * max(p) is the same as logit < max(logit) + log(share). The likeliest token always stays; 0 leaves out nothing.
    """
    least = scores_bv.amax(-1) + shares_b.log()
    return scores_bv.masked_fill(scores_bv < least[:, None], -torch.inf)


def _truncated(scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling]) -> torch.Tensor:
    """Leave out tokens with a smaller logit than the `top_k` likeliest, and then those beyond `top_p`."""
    num_ids, device = scores_bv.size(1), scores_bv.device
    asked = [sequence.params.top_k for sequence in sequences]
    counts = [min(count, num_ids) if count > 0 else num_ids for count in asked]
    if min(counts) < num_ids:  # with ties more than so many stay
        best = scores_bv.topk(max(counts), dim=-1).values
        least = best.gather(1, torch.tensor(counts, device=device)[:, None] - 1)
        scores_bv = scores_bv.masked_fill(scores_bv < least, -torch.inf)
    shares = [sequence.params.top_p for sequence in sequences]
    return _top_p(scores_bv, torch.tensor(shares, device=device)) if min(shares) < 1 else scores_bv


def _top_p(scores_bv: torch.Tensor, shares_b: torch.Tensor) -> torch.Tensor:
    """Keep the fewest likeliest tokens whose probabilities reach a share (Holtzman et al. 2019, arXiv:1904.09751).

    At least one token stays. The probabilities are those of the tokens that earlier filters left.
    """
    ascending, order = scores_bv.sort(dim=-1)
    is_out = ascending.softmax(-1).cumsum(-1) <= 1 - shares_b[:, None]
    is_out[:, -1] = False
    return scores_bv.masked_fill(torch.empty_like(is_out).scatter_(1, order, is_out), -torch.inf)


def _draw_with_seeds(
    scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling], token_ids: torch.Tensor, logprobs: torch.Tensor
) -> None:
    """Draw the rows with a seed again, by noise of their own: see services/engine/seeded.py."""
    rows = [row for row, sequence in enumerate(sequences) if sequence.params.seed is not None]
    if not rows:
        return
    seeds = [sequences[row].params.seed or 0 for row in rows]
    places = [sequences[row].num_tokens for row in rows]
    logprobs_bv = scores_bv[rows].log_softmax(-1)
    noise_bv = gumbel_noise(seeds, places, logprobs_bv.size(1), logprobs_bv.device)
    chosen = (logprobs_bv + noise_bv).argmax(-1)
    token_ids[rows] = chosen
    logprobs[rows] = logprobs_bv.gather(1, chosen[:, None])[:, 0]


def _report_tops(
    scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling], token_ids: list[int], logprobs: torch.Tensor
) -> None:
    rows = [row for row, sequence in enumerate(sequences) if sequence.num_logprobs > 0]
    if not rows:
        return
    most = min(max(sequences[row].num_logprobs for row in rows), scores_bv.size(1))
    best = scores_bv[rows].log_softmax(-1).topk(most)
    own = logprobs[rows].tolist()
    for row, chosen, ids, values in zip(rows, own, best.indices.tolist(), best.values.tolist(), strict=True):
        sequence, token_id = sequences[row], token_ids[row]
        ranked = zip(ids, values, strict=True)
        others = [(other, value) for other, value in ranked if other != token_id and value > -torch.inf]
        sequence.tops.append([(token_id, chosen), *others[: sequence.num_logprobs - 1]])
