"""An engine over a tiny model of any architecture, with the demo's tokenizer, so that grammars work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from policy.weights import tensors_of
from services.engine.engine import Engine
from services.engine.sampling import GenerateRequest
from services.http import read_json
from tests.models import BASE, tiny_model
from tests.unit.services.engine.memory_store import POLICY, MemoryStore
from tests.unit.services.engine.world import make_engine

TOKENIZER = BASE / "tokenizer.json"
END_ID = 1
SPREAD = 12.0
"""A random model's logits times this: far enough from uniform that filters and penalties matter."""


def sharp_model(kind: str, seed: int = 7) -> Any:
    """A tiny random model that is not nearly uniform."""
    model = tiny_model(kind, seed=seed).requires_grad_(requires_grad=False)
    model.get_output_embeddings().weight.mul_(SPREAD)
    return model


def policy_store(kind: str, num_versions: int = 2) -> MemoryStore:
    """Versions 1 to `num_versions` of a policy of this architecture, each other weights."""
    store = MemoryStore()
    for number in range(1, num_versions + 1):
        store.add(number, tensors_of(sharp_model(kind, number)), parent=number - 1 or None)
    return store


def policy_engine(kind: str, store: MemoryStore, **named: Any) -> Engine:
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
