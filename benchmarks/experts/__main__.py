"""Experts that flip between a bfloat16 engine and a float32 trainer, what replay makes of them, and bytes per token.

usage: python -m benchmarks.experts [--requests N] [--tokens N] [--json]

In: two small Qwen3-MoE models with random weights, the same bits on both sides. Our engine answers in bfloat16 (and, as the floor,
in float32) and records its experts; the trainer's scorer computes the same tokens in float32, with and without replay. Out: a table;
with --json a dated file too. k1 and k3 are estimates of KL(engine || trainer) in nats per sampled token.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import io
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.report import print_table, write_report
from contracts.experts import pack_experts
from contracts.ids import new_completion_id, sample_key
from contracts.records import Experience, Segment, pack_floats, pack_ids, seal_body
from contracts.sampling import ExpertShape, Sampling, Span
from pipelines.training.learning.loss import LossSums, clamped_log_ratio
from pipelines.training.learning.micro_batches import MicroBatch, micro_batches
from policy.logprobs import TokenScorer
from policy.routing import NO_REPLAY, ExpertRecorder, Routing, routing_of
from policy.weights import copy_tensors, tensors_of
from services.engine.arm import EngineArm
from services.engine.experts import observer_of
from services.engine.grammars import Grammars
from services.engine.sampling import GenerateRequest, SamplingParams
from services.engine.settings import EngineSettings

_COMMON: dict[str, Any] = {
    "vocab_size": 704, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 128, "moe_intermediate_size": 32, "norm_topk_prob": True, "tie_word_embeddings": False,
    "max_position_embeddings": 512, "initializer_range": 0.1, "pad_token_id": 0,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "2 layers, 2 of 4 experts": {"num_hidden_layers": 2, "num_experts": 4, "num_experts_per_tok": 2},
    "8 layers, 8 of 64 experts": {"num_hidden_layers": 8, "num_experts": 64, "num_experts_per_tok": 8},
}
_PROMPT_TOKENS, _MAX_TOKENS, _SEED = 24, 8192, 7


class Scored(NamedTuple):
    """Sums over sampled tokens, and how many tokens of the rows had other experts than recorded."""

    sums: LossSums
    num_tokens: int
    num_flipped: int
    num_choices: int
    num_choices_flipped: int

    def figures(self) -> dict[str, float]:
        """Shares of tokens with a flip in any layer and of choices (token and layer) with one; k1 and k3."""
        metrics = self.sums.metrics()
        return {
            "tokens_flipped": self.num_flipped / self.num_tokens,
            "choices_flipped": self.num_choices_flipped / self.num_choices,
            "k1": metrics["k1"],
            "k3": metrics["k3"],
            "ratio_max": self.sums.ratio_max,
        }


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write a file if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.experts")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = [
        {"model": name, "engine": str(dtype).removeprefix("torch."), **_measured(config, dtype, options)}
        for name, config in MODELS.items()
        for dtype in (torch.bfloat16, torch.float32)
    ]
    columns = ("model", "engine", "trainer", "tokens flipped", "choices flipped", "k1", "k3", "largest ratio")
    print_table(
        "experts", columns,
        [
            [row["model"], row["engine"], way, *(f"{value:.3g}" for value in row[key].values())]
            for row in rows
            for way, key in (("float32", "without_replay"), ("float32, replayed", "with_replay"))
        ],
    )  # fmt: skip
    sizes = ("model", "raw", "packed", "segment without", "segment with")
    print_table("bytes per token", sizes, [[row["model"], *row["bytes_per_token"].values()] for row in rows[::2]])
    if options.json:
        settings = {"requests": options.requests, "prompt_tokens": _PROMPT_TOKENS, "answer_tokens": options.tokens}
        print(f"written: {write_report('experts', {'settings': settings, 'rows': rows})}")


def _measured(config: dict[str, Any], dtype: torch.dtype, options: argparse.Namespace) -> dict[str, Any]:
    model = _model(config)
    routing = routing_of(model)
    if routing.problem:
        raise SystemExit(routing.problem)
    samples = asyncio.run(_answered(copy.deepcopy(model).to(dtype), options.requests, options.tokens))
    own, replayed = (_scored(model, routing, samples, replay=replay) for replay in (False, True))
    return {
        "sampled_tokens": int(own.sums.num_tokens),
        "without_replay": own.figures(),
        "with_replay": replayed.figures(),
        "bytes_per_token": _sizes(samples),
    }


def _model(config: dict[str, Any]) -> Any:
    """Random float32 weights with the bits of a published version: bfloat16."""
    torch.manual_seed(_SEED)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_moe", **{**_COMMON, **config})).eval()
    copy_tensors(model.requires_grad_(requires_grad=False), tensors_of(model))
    return model


async def _answered(model: Any, num_requests: int, num_tokens: int) -> list[Experience]:
    """Answers of our engine, as experiences with recorded experts."""
    settings = EngineSettings(cache_tokens=16_384, max_batch_tokens=256)
    grammars = Grammars(None, _COMMON["vocab_size"], frozenset(), 1.0)
    arm = EngineArm(
        "live", model, 1, settings=settings, grammars=grammars, on_gave_up=lambda: None, observer=observer_of(model)
    )
    random = np.random.default_rng(_SEED)
    prompts = random.integers(2, _COMMON["vocab_size"], (num_requests, _PROMPT_TOKENS)).tolist()
    try:
        return await asyncio.gather(*(_answer(arm, prompt, num_tokens, seed) for seed, prompt in enumerate(prompts)))
    finally:
        await asyncio.to_thread(arm.stop)


async def _answer(arm: EngineArm, prompt: list[int], num_tokens: int, seed: int) -> Experience:
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True, seed=seed)
    active = await arm.open(GenerateRequest(model="tiny", token_ids=prompt, sampling_params=params))
    [chunk] = [chunk async for chunk in active.chunks()]
    choices = np.load(io.BytesIO(chunk.routed_experts), allow_pickle=False).astype("<u2")
    segment = Segment(
        token_ids=pack_ids([*prompt, *chunk.token_ids]),
        loss_mask=bytes(len(prompt)) + b"\x01" * len(chunk.token_ids),
        logprobs=pack_floats([0.0] * len(prompt) + chunk.logprobs),
        spans=(Span(0, 1),),
        sampling=Sampling(temperature=1.0, max_tokens=num_tokens),
        experts=pack_experts(choices.tobytes()),
        expert_shape=ExpertShape(*choices.shape),
    )
    return Experience(
        key=sample_key(new_completion_id(), 0), revision=0, policy="tiny", task="task", task_hash="hash", tenant="default",
        purpose="user", baseline_key="task", segments=(segment,), scores=(), reward=1.0, status="scored",
        generated_at=0.0, scored_at=0.0, engine="ours", dtype=str(arm.model.dtype),
    )  # fmt: skip


@torch.no_grad()
def _scored(model: Any, routing: Routing, samples: list[Experience], *, replay: bool) -> Scored:
    scorer, recorder, sums = TokenScorer(model), ExpertRecorder(model), LossSums()
    num_tokens = num_flipped = num_choices = num_choices_flipped = 0
    recorded = micro_batches(samples, max_tokens=_MAX_TOKENS, routing=routing)
    used = micro_batches(samples, max_tokens=_MAX_TOKENS, routing=routing if replay else NO_REPLAY)
    for batch, known in zip(used, recorded, strict=True):
        found = batch.scored_by(scorer).log_probs_BT
        flipped = _flipped(recorder, known)
        num_tokens, num_flipped = num_tokens + len(flipped), num_flipped + int(flipped.any(-1).sum())
        num_choices, num_choices_flipped = num_choices + flipped.numel(), num_choices_flipped + int(flipped.sum())
        log_ratio = clamped_log_ratio(found[batch.mask_BT], batch.behaviour_BT[batch.mask_BT])
        ratio = log_ratio.exp()
        sums.add(
            LossSums(
                num_tokens=log_ratio.numel(), ratio=float(ratio.sum()), log_ratio=float(log_ratio.sum()),
                ratio_max=float(ratio.max()),
            )
        )  # fmt: skip
    recorder.close()
    return Scored(sums, num_tokens, num_flipped, num_choices, num_choices_flipped)


def _flipped(recorder: ExpertRecorder, known: MicroBatch) -> torch.Tensor:
    """True where a token's experts in a layer are not the recorded ones, in any order [tokens, M]."""
    chosen, recorded = recorder.take(), known.experts_BLMK
    if chosen is None or recorded is None:
        raise SystemExit("no experts were recorded")
    recorded = recorded.reshape(chosen.shape).long()
    is_known = recorded[:, 0, 0] >= 0
    return (chosen.sort(-1).values != recorded.sort(-1).values).any(-1)[is_known]


def _sizes(samples: list[Experience]) -> dict[str, float]:
    """Bytes per token of prompt and answer: of the choices as uint16, packed, and of a whole compressed segment."""
    segments = [segment for sample in samples for segment in sample.segments]
    count = sum(len(segment.token_ids) // 4 for segment in segments)
    shapes = [segment.expert_shape for segment in segments if segment.expert_shape is not None]
    raw = sum(2 * shape.num_tokens * shape.num_layers * shape.num_chosen for shape in shapes)
    bare = [msgspec.structs.replace(segment, experts=b"", expert_shape=None) for segment in segments]
    return {
        "raw": raw / count,
        "packed": sum(len(segment.experts) for segment in segments) / count,
        "segment_without": sum(len(seal_body(segment)) for segment in bare) / count,
        "segment_with": sum(len(seal_body(segment)) for segment in segments) / count,
    }


if __name__ == "__main__":
    main(sys.argv[1:])
