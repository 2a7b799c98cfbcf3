"""Our engine without HTTP, over versions in a folder, and answers to ask of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer

from contracts.assignments import LIVE
from examples.reservations.sentences import requests
from policy.load import load_model
from services.engine.engine import Engine
from services.engine.settings import EngineSettings
from tests.worlds.versions import publish_next
from weights.stores.opening import open_store_at
from weights.tensors import read_safetensors

POLICY = "benchmark"


class Job(NamedTuple):
    """One answer to make: exactly `num_tokens` tokens after the prompt's ids."""

    prompt: list[int]
    num_tokens: int


def make_jobs(base: Path, count: int, *, shortest: int, longest: int, seed: int) -> list[Job]:
    """Sentences of the demo's users; lengths drawn evenly."""
    tokenizer = _tokenizer(base)
    draw = Random(seed)
    sentences = (request.sentence for request in itertools.islice(requests("users", seed), count))
    return [
        Job(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": sentence}], add_generation_prompt=True, return_dict=False
            ),
            draw.randint(shortest, longest),
        )
        for sentence in sentences
    ]


@contextmanager
def open_engine(folder: Path, make_model: Callable[[], Any], settings: EngineSettings) -> Iterator[Engine]:
    """The engine as its process runs it, over the versions published in a folder; version 0 is live."""
    engine = Engine(
        policy=POLICY,
        settings=settings,
        store=open_store_at(folder),
        make_model=make_model,
        on_swap=lambda _record: None,
        on_gave_up=lambda: None,
    )
    try:
        engine.update(LIVE, 0)
        yield engine
    finally:
        engine.close()


@contextmanager
def open_engine_on(
    folder: Path, base: Path, device: str, dtype: torch.dtype, settings: EngineSettings
) -> Iterator[Engine]:
    """The same, with `base` published under `folder` as version 0."""
    publish_next(open_store_at(folder), POLICY, 0, base=None, target=read_safetensors(base))
    with open_engine(folder, lambda: load_model(str(base), device=device, dtype=dtype), settings) as engine:
        yield engine


@cache
def _tokenizer(base: Path) -> Any:
    return AutoTokenizer.from_pretrained(base)
