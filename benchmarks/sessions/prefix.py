"""What kept prefixes save: one session of many turns with tools, asked of an engine that keeps them and of one that does not.

In: nothing. Out: seconds to the first token and of whole answers, the ratios of both engines by round, and whether both said the same.
Each turn is asked of one engine right after the other, in turns first and second, so that what else the machine does meets both. The
policy has random weights; both engines sample with the same seed.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.report import summarise
from services.engine.arm import EngineArm
from services.engine.grammars import Grammars
from services.engine.sampling import GenerateRequest, SamplingParams
from services.engine.settings import EngineSettings

_VOCABULARY, _CONTEXT = 4096, 8192
_NUM_SYSTEM, _NUM_ANSWER, _NUM_RESULT = 300, 24, 48
"""Tokens of system prompt and tools, of each answer, and of each result of a tool with what stands around it."""
_NUM_LAST = 10
_WITH, _WITHOUT = "with", "without"


class _Answer(NamedTuple):
    token_ids: list[int]
    logprobs: list[float]
    first_token_seconds: float
    seconds: float
    num_prompt: int
    num_cached: int


def run(rounds: int, turns: int) -> dict[str, Any]:
    """See the module."""
    torch.set_num_threads(1)
    model = _model()
    with _arm(model, EngineSettings().prefix_cache_bytes) as keeping, _arm(copy.deepcopy(model), 0) as plain:
        arms = {_WITH: keeping, _WITHOUT: plain}
        asyncio.run(_session(arms, turns=2, seed=-1))  # what is made once
        sessions = [asyncio.run(_session(arms, turns, seed)) for seed in range(rounds)]
    return {
        "good": all(_is_same(session) for session in sessions),
        "parameters_millions": round(sum(part.numel() for part in keeping.model.parameters()) / 1e6, 1),
        "turns": turns,
        "longest_prompt": sessions[0][_WITH][-1].num_prompt,
        "first_token": _compared(sessions, "first_token_seconds", 0),
        f"first_token_of_last_{_NUM_LAST}": _compared(sessions, "first_token_seconds", -_NUM_LAST),
        "whole_session": _compared(sessions, "seconds", 0),
        "cached_share": sum(one.num_cached for session in sessions for one in session[_WITH])
        / sum(one.num_prompt for session in sessions for one in session[_WITH]),
        "answers_of_other_tokens": sum(
            one.token_ids != other.token_ids
            for session in sessions
            for one, other in zip(session[_WITH], session[_WITHOUT], strict=True)
        ),
        "largest_difference_of_log_probs": max(
            abs(one - other)
            for session in sessions
            for mine, others in zip(session[_WITH], session[_WITHOUT], strict=True)
            for one, other in zip(mine.logprobs, others.logprobs, strict=True)
        ),
    }


def _model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=_CONTEXT,
        initializer_range=0.05,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)


@contextmanager
def _arm(model: Any, prefix_cache_bytes: int) -> Iterator[EngineArm]:
    settings = EngineSettings(cache_tokens=_CONTEXT, prefix_cache_bytes=prefix_cache_bytes)
    grammars = Grammars(None, _VOCABULARY, frozenset(), settings.grammar_seconds)
    arm = EngineArm("live", model, 1, settings=settings, grammars=grammars, on_gave_up=lambda: None)
    try:
        yield arm
    finally:
        arm.stop()
        grammars.close()


async def _session(arms: dict[str, EngineArm], turns: int, seed: int) -> dict[str, list[_Answer]]:
    rolls = random.Random(seed)  # noqa: S311 a session that can be repeated
    system = _some(rolls, _NUM_SYSTEM)
    results = [_some(rolls, _NUM_RESULT) for _ in range(turns)]
    prompts, answers = {name: list(system) for name in arms}, {name: list[_Answer]() for name in arms}
    for turn, result in enumerate(results):
        for name in sorted(arms, reverse=turn % 2 == 1):
            prompts[name] += result
            answer = await _ask(arms[name], prompts[name], salt=f"session {seed}", seed=turn)
            answers[name].append(answer)
            prompts[name] += answer.token_ids
    return answers


async def _ask(arm: EngineArm, prompt: list[int], salt: str, seed: int) -> _Answer:
    params = SamplingParams(max_tokens=_NUM_ANSWER, ignore_eos=True, seed=seed)
    active = arm.submit(GenerateRequest(model="", token_ids=prompt, sampling_params=params, cache_salt=salt))
    [chunk] = [part async for part in active.chunks()]
    timings = active.timings()
    return _Answer(
        chunk.token_ids,
        chunk.logprobs,
        timings["first_token_seconds"],
        active.token_times[-1] - active.submitted_at,
        len(prompt),
        chunk.num_cached or 0,
    )


def _some(rolls: random.Random, count: int) -> list[int]:
    return [rolls.randrange(_VOCABULARY) for _ in range(count)]


def _compared(sessions: list[dict[str, list[_Answer]]], name: str, first: int) -> dict[str, Any]:
    """Seconds of all turns from `first` on, by round, and how many times as fast the engine is that keeps prefixes."""
    sums = {
        arm: [sum(getattr(one, name) for one in session[arm][first:]) for session in sessions] for arm in sessions[0]
    }
    return {
        "seconds_with": summarise(sums[_WITH]),
        "seconds_without": summarise(sums[_WITHOUT]),
        "ratio": summarise([without / kept for kept, without in zip(sums[_WITH], sums[_WITHOUT], strict=True)]),
    }


def _is_same(session: dict[str, list[_Answer]]) -> bool:
    return all(one.token_ids == other.token_ids for one, other in zip(session[_WITH], session[_WITHOUT], strict=True))
