"""An engine over a tiny model of any architecture, with the demo's tokenizer, so that grammars work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLTokenizer

from policy.weights import tensors_of
from services.engine.active_requests import TokenChunk
from services.engine.engine import Engine
from services.engine.grammars import json_grammar, lark_grammar
from services.engine.sampling import GenerateRequest
from services.http import read_json
from tests.models import BASE, tiny_model
from tests.tolerances import tolerance
from tests.unit.services.engine.sampling_reference import distributions, plain_logits
from tests.worlds.engines.memory_store import POLICY, StoreInMemory
from tests.worlds.engines.tiny import complete, make_engine

TOKENIZER = BASE / "tokenizer.json"
END_ID = 1
SPREAD = 12.0
"""A random model's logits times this: far enough from uniform that filters and penalties matter."""


def sharp_model(kind: str, seed: int = 7) -> Any:
    """A tiny random model that is not nearly uniform."""
    model = tiny_model(kind, seed=seed).requires_grad_(requires_grad=False)
    model.get_output_embeddings().weight.mul_(SPREAD)
    return model


def policy_store(kind: str, num_versions: int = 2) -> StoreInMemory:
    """Versions 1 to `num_versions` of a policy of this architecture, each other weights."""
    store = StoreInMemory()
    for number in range(1, num_versions + 1):
        store.add(number, tensors_of(sharp_model(kind, number)), parent=number - 1 or None)
    return store


def policy_engine(kind: str, store: StoreInMemory, **named: Any) -> Engine:
    """An engine with version 1 live."""
    engine = make_engine(store, make_model=lambda: sharp_model(kind), tokenizer=TOKENIZER, **named)
    engine.update("live", 1)
    return engine


def request(prompt: list[int], *, num_made: int = 0, stream: bool = False, **params: Any) -> GenerateRequest:
    """A request as it comes over the wire; it stops only at its length."""
    given = {"max_tokens": 8, "ignore_eos": True, **params}
    body = {"model": POLICY, "token_ids": prompt, "num_made": num_made, "stream": stream, "sampling_params": given}
    return read_json(GenerateRequest, msgspec.json.encode(body))


def allowed_by(grammar: str, num_ids: int) -> Callable[[list[int]], np.ndarray[Any, np.dtype[np.bool_]]]:
    """For the tokens of an answer so far, which tokens a grammar allows next [V]."""
    tokenizer = LLTokenizer(str(TOKENIZER), n_vocab=num_ids, eos_token=[END_ID])

    def allowed(made: list[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        matcher = LLMatcher(tokenizer, grammar)
        assert matcher.consume_tokens(made), matcher.get_error()
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        return np.unpackbits(bits, bitorder="little")[:num_ids].astype(bool)

    return allowed


def rounding(model: Any, num_tokens: int) -> float:
    """How far log-probs may lie apart when both are right. A recurrent state is a sum over all tokens."""
    widest = max(max(parameter.shape) for name, parameter in model.named_parameters() if "embed" not in name)
    depth = 6 * model.config.num_hidden_layers + 1  # matmuls, one after another
    return tolerance(torch.float32, max(min(widest, 512), num_tokens), depth, SPREAD)


PROMPTS = [[2, 40, 41], [7], list(range(3, 90)), [9, 9, 9, 300, 42, 500, 11], [5, 6] * 21, [2, 40, 41, 43]]
PARAMS: list[dict[str, Any]] = [
    {"max_tokens": 20},
    {"max_tokens": 3, "temperature": 0},
    {"max_tokens": 24, "repetition_penalty": 1.3, "logprobs": 4},
    {"max_tokens": 12, "top_k": 9, "temperature": 0.8},
    {"max_tokens": 16, "frequency_penalty": 0.4, "logit_bias": {"77": 3}},
    {"max_tokens": 20, "structured_outputs": {"json_object": True}, "ignore_eos": False},
]


async def check_mixed_batch(engine: Engine, model: Any) -> None:
    """Requests with every kind of option, served beside each other, have the log-probs of a plain forward of `model`."""
    asked = [request(prompt, seed=3, **params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    answers = await asyncio.gather(*(complete(engine, one) for one in asked))
    for one, params, answer in zip(asked, PARAMS, answers, strict=True):
        check(model, one, params, answer)
    alone = await complete(engine, asked[0])
    assert alone.token_ids == answers[0].token_ids, "whoever is served beside it"
    assert engine.resolve(POLICY).restarts == 0


def check(model: Any, asked: GenerateRequest, params: dict[str, Any], answer: TokenChunk) -> None:
    """Each sampled token's log-prob, and the top log-probs, are those of the recomputed distribution."""
    prompt, made = list(asked.token_ids), answer.token_ids
    outputs = params.get("structured_outputs")
    allowed = None
    if outputs is not None:
        grammar = lark_grammar(outputs["grammar"]) if "grammar" in outputs else json_grammar('{"type": "object"}')
        before = prompt[len(prompt) - asked.num_made :]
        follow = allowed_by(grammar, 704)
        allowed = lambda tokens: follow(before + tokens)  # noqa: E731
    rows = distributions(
        plain_logits(model, prompt, made), prompt, made, {**params, "num_made": asked.num_made}, allowed
    )
    room = rounding(model, len(prompt) + len(made)) / (params.get("temperature", 1.0) or 1.0)
    expected = [row[token] for row, token in zip(rows, made, strict=True)]
    assert answer.logprobs == pytest.approx(expected, abs=room)
    num_top = params.get("logprobs", 0)
    assert len(answer.top_logprobs) == (len(made) if num_top else 0)
    for row, token, logprob, top in zip(rows, made, answer.logprobs, answer.top_logprobs, strict=False):
        assert top[0] == (token, logprob)
        assert [value for _, value in top] == pytest.approx([row[other] for other, _ in top], abs=room)
        others = np.delete(row, token)
        best = np.sort(others[others > -np.inf])[::-1][: num_top - 1]
        assert [value for _, value in top[1:]] == pytest.approx(best.tolist(), abs=room), (
            "the likeliest others, in order"
        )
