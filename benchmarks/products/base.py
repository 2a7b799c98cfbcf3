"""Builds the base policy of a product: a tokenizer, then training on answers that are wrong about half of the time.

A base is kept in the temporary folder of this machine under a hash of the code that made it. Nothing is downloaded.
"""

# ruff: noqa: S311 training data needs repeatable randomness, not secret randomness

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from random import Random
from typing import cast

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.products.questions import ExtraProduct, ProductQuestion, stream
from examples.reservations.build_base import MAX_LEARNING_RATE, WARM_UP_STEPS
from examples.reservations.fitting import fit, padded, save, untrained
from examples.reservations.tokenizer import CHAT_TEMPLATE, CONTEXT, END, ROLES, VOCABULARY_SIZE, as_chat, train_merges
from tests.worlds.paths import EXAMPLE

NUM_STEPS, QUICK_STEPS = 1500, 200
_BATCH_SIZE = 32
_NUM_TEXTS = 3000
_SEED = 0
# Digits are single tokens, and the opening of a box is one.
_WORD = r"\\boxed\{|[0-9]| ?\p{L}+|\s+|[^\s\p{L}0-9]"
_FOLDER = Path(__file__).parent


def base_of(product: ExtraProduct, num_steps: int) -> Path:
    """The folder of the product's base. It is built if this code has not built it yet; progress goes to stdout."""
    own = [_FOLDER / f"{name}.py" for name in ("base", "questions", product.name)]
    sources = [*own, *(EXAMPLE / f"{name}.py" for name in ("build_base", "fitting", "tokenizer"))]
    digest = blake2b(f"{num_steps} {torch.__version__}".encode(), digest_size=8)
    for source in sources:
        digest.update(source.read_bytes())
    kept = Path(tempfile.gettempdir()) / f"millrace-products-{os.getuid()}"
    kept.mkdir(mode=0o700, exist_ok=True)
    folder = kept / f"{product.name}-{digest.hexdigest()}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=kept) as made:
            _build(product, num_steps, Path(made) / "base")
            # An end in the middle leaves nothing under the name; of two builders, one is too late.
            if not folder.exists():
                (Path(made) / "base").rename(folder)
    return folder


def _build(product: ExtraProduct, num_steps: int, out: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tokenizer = _tokenizer(product)
        model = _model(tokenizer)
        print(f"{product.name}: building the base, {model.num_parameters():,} parameters, {len(tokenizer)} tokens")
        fit(model, _batches(product, tokenizer), num_steps, MAX_LEARNING_RATE, WARM_UP_STEPS)
        save(model, tokenizer, out)
    finally:
        torch.set_num_threads(threads)


def _model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """The demo's kind of model, smaller: about 0.3 million parameters with tied embeddings."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return untrained(
        tokenizer, _SEED, context=CONTEXT, hidden_size=96, intermediate_size=288, num_hidden_layers=2, **heads
    )


def _batches(product: ExtraProduct, tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    questions, rng = stream(product, "train", _SEED), Random(_SEED)
    while True:
        rows = [_row(tokenizer, question, rng) for question in islice(questions, _BATCH_SIZE)]
        yield padded(rows, cast("int", tokenizer.pad_token_id))


def _row(tokenizer: PreTrainedTokenizerFast, question: ProductQuestion, rng: Random) -> tuple[list[int], list[int]]:
    prompt = tokenizer.encode(f"<|user|>{question.text}<|end|><|assistant|>")
    return prompt, tokenizer.encode(question.label(rng) + END)


def _tokenizer(product: ExtraProduct) -> PreTrainedTokenizerFast:
    """Like the demo's, over the words of this product; any other text falls back to bytes."""
    texts = [
        text
        for question in islice(stream(product, "train", _SEED), _NUM_TEXTS)
        for text in (question.text, *(answer for answer, _ in question.labels))
    ]
    return as_chat(train_merges(texts, _WORD, ROLES, VOCABULARY_SIZE), ROLES, CHAT_TEMPLATE)
