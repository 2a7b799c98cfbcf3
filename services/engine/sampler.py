"""Samples one token for each sequence of a step, with everything that requests may ask for.

In: the logits of a step, and the sampling of each of its sequences. Out: tokens and their log-probs; the sequences remember
what the next token needs. Waits for: the device, if a sequence must know its token.

The order is vLLM's (v1/sample/sampler.py): grammar, biases, penalties, greedy, temperature, min-p, top-k, top-p. The log-prob of a
token is that of the distribution it was drawn from, after all of them (vLLM's `processed_logprobs`). A greedy token is drawn from a
distribution over itself, so its log-prob is 0. What no sequence of a step uses costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from services.engine.seeded import gumbel_noise
from services.engine.sequence import SequenceSampling
from services.engine.truncation import min_p, top_k, top_p


def sample(scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling]) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token for each row.

    Args:
        scores_bv: logits [B, V], float32. They may be changed.
        sequences: one for each row [B].

    Returns:
        Token ids, int64 [B], and their log-probs, float32 [B].

    Raises:
        RuntimeError: a logit is not a number.
    """
    if not all(sequence.is_plain for sequence in sequences):
        scores_bv = processed(scores_bv, sequences)
    shares_bv = scores_bv.softmax(-1)
    token_ids = torch.multinomial(shares_bv, 1)[:, 0]
    logprobs = shares_bv.gather(1, token_ids[:, None])[:, 0].log()
    _draw_with_seeds(scores_bv, sequences, token_ids, logprobs)
    _remember(scores_bv, sequences, token_ids, logprobs)
    return token_ids, logprobs


def processed(scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling]) -> torch.Tensor:
    """The logits [B, V] whose softmax is drawn from."""
    options = [sequence.options for sequence in sequences]
    device = scores_bv.device

    def values(numbers: Sequence[float]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.float32, device=device)

    _mask(scores_bv, sequences)
    for row, sequence in enumerate(sequences):
        if sequence.options.logit_bias:
            scores_bv[row].index_add_(0, *sequence.bias(device))
    _penalise(scores_bv, sequences)
    if rows := [row for row, asked in enumerate(options) if asked.temperature == 0]:
        scores_bv[rows] = _likeliest(scores_bv[rows])
    temperatures = [asked.temperature or 1.0 for asked in options]
    if any(temperature != 1 for temperature in temperatures):
        scores_bv = scores_bv / values(temperatures)[:, None]
    if any(asked.min_p > 0 for asked in options):
        scores_bv = min_p(scores_bv, values([asked.min_p for asked in options]))
    if rows := [row for row, asked in enumerate(options) if asked.is_truncated]:
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
    rows = [row for row, sequence in enumerate(sequences) if sequence.options.is_penalised]
    if not rows:
        return
    device, asked = scores_bv.device, [sequences[row].options for row in rows]
    made = [sequences[row].penalised(scores_bv.size(1), device) for row in rows]
    counts_bv, seen_bv = (torch.stack(parts) for parts in zip(*made, strict=True))
    repetition, frequency, presence = (
        torch.tensor(numbers, dtype=torch.float32, device=device)[:, None]
        for numbers in zip(
            *((one.repetition_penalty, one.frequency_penalty, one.presence_penalty) for one in asked), strict=True
        )
    )
    found = scores_bv[rows]
    found = torch.where(seen_bv, torch.where(found > 0, found / repetition, found * repetition), found)
    scores_bv[rows] = found - frequency * counts_bv - presence * (counts_bv > 0)


def _likeliest(scores_bv: torch.Tensor) -> torch.Tensor:
    """The largest logit alone; not a number stays not a number, so that a broken model is noticed."""
    best = scores_bv.argmax(-1, keepdim=True)
    return torch.full_like(scores_bv, -torch.inf).scatter_(1, best, scores_bv.gather(1, best))


def _truncated(scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling]) -> torch.Tensor:
    num_ids, device = scores_bv.size(1), scores_bv.device
    counts = [min(sequence.options.top_k or num_ids, num_ids) for sequence in sequences]
    if min(counts) < num_ids:
        scores_bv = top_k(scores_bv, torch.tensor(counts, device=device))
    shares = [sequence.options.top_p for sequence in sequences]
    return top_p(scores_bv, torch.tensor(shares, device=device)) if min(shares) < 1 else scores_bv


def _draw_with_seeds(
    scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling], token_ids: torch.Tensor, logprobs: torch.Tensor
) -> None:
    """Draw the rows with a seed again, by noise of their own: see services/engine/seeded.py."""
    rows = [row for row, sequence in enumerate(sequences) if sequence.options.seed is not None]
    if not rows:
        return
    seeds = [sequences[row].options.seed or 0 for row in rows]
    places = [sequences[row].num_tokens for row in rows]
    logprobs_bv = scores_bv[rows].log_softmax(-1)
    noise_bv = gumbel_noise(seeds, places, logprobs_bv.size(1), logprobs_bv.device)
    chosen = (logprobs_bv + noise_bv).argmax(-1)
    token_ids[rows] = chosen
    logprobs[rows] = logprobs_bv.gather(1, chosen[:, None])[:, 0]


def _remember(
    scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling], token_ids: torch.Tensor, logprobs: torch.Tensor
) -> None:
    if any(sequence.is_remembered for sequence in sequences):
        ids = token_ids.tolist()
        _report_tops(scores_bv, sequences, ids, logprobs)
        for sequence, token_id in zip(sequences, ids, strict=True):
            sequence.remember(token_id)
    for sequence in sequences:
        sequence.num_tokens += 1


def _report_tops(
    scores_bv: torch.Tensor, sequences: Sequence[SequenceSampling], token_ids: list[int], logprobs: torch.Tensor
) -> None:
    rows = [row for row, sequence in enumerate(sequences) if sequence.options.num_logprobs > 0]
    if not rows:
        return
    most = min(max(sequences[row].options.num_logprobs for row in rows), scores_bv.size(1))
    best = scores_bv[rows].log_softmax(-1).topk(most)
    own = logprobs[rows].tolist()
    for row, chosen, ids, values in zip(rows, own, best.indices.tolist(), best.values.tolist(), strict=True):
        sequence, token_id = sequences[row], token_ids[row]
        ranked = zip(ids, values, strict=True)
        others = [(other, value) for other, value in ranked if other != token_id and value > -torch.inf]
        sequence.tops.append([(token_id, chosen), *others[: sequence.options.num_logprobs - 1]])
