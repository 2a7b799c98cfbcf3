"""The watchman's base policy: it knows every move, takes a wrong one now and then, and goes home too early. About a third of its rounds go well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from examples.reservations.fitting import IGNORED, fit, padded, save, untrained
from examples.reservations.tokenizer import as_chat, train_merges
from tests.worlds.rounds.hall import DONE, GIVEN_UP, KEEP, NUM_SHELVES, OFFERED, REPAIR, RIGHT, Hall, written

ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
MARKS = ("<tool_call>", "</tool_call>")
WORD = r"""\n\{"name": "|", "arguments": \{\}\}\n|\{"[a-z]+": "|"\}| ?[A-Za-z]+|[^A-Za-z]"""
TEMPLATE = Path(__file__).parents[3] / "examples" / "support" / "chat_template.jinja"
WRONG, EARLY = 0.06, 0.015
"""Chances of the wrong tool, and of going home, at each shelf."""
CONTEXT = 512
NUM_STEPS, BATCH_SIZE, LEARNING_RATE = 250, 12, 3e-3
WITHOUT_TOOLS = 0.2


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Each word and each fixed part of a call is one token."""
    hall = Hall(Random(0))
    texts = [hall.text, Hall(Random(1)).text, DONE, GIVEN_UP, json.dumps({"hall": "seen"}), " keep repair"]
    texts += [json.dumps({"seal": seal}) for seal in RIGHT]
    texts += [written(tool).removeprefix(MARKS[0]).removesuffix(MARKS[1]) for tool in (KEEP, REPAIR)]
    tokenizer = train_merges(texts * 50, WORD, ROLES, 512)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    made = as_chat(tokenizer, ROLES, TEMPLATE.read_text().rstrip("\n"))
    made.model_max_length = CONTEXT
    return made


def build(out: Path, seed: int = 0) -> Path:
    """Write the policy into `out`."""
    tokenizer = build_tokenizer()
    model = untrained(
        tokenizer,
        seed,
        context=CONTEXT,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    fit(model, _batches(tokenizer, seed), NUM_STEPS, LEARNING_RATE, 30)
    save(model, tokenizer, out)
    return out


def _batches(tokenizer: PreTrainedTokenizerFast, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of rounds; most are short, since only the last result matters, and every fourth batch is of whole ones."""
    rng = Random(seed)
    number = 0
    while True:
        number += 1
        shelves = NUM_SHELVES if number % 4 == 0 else rng.randrange(2, 8)
        rows = [_round(tokenizer, rng, shelves) for _ in range(BATCH_SIZE)]
        ids, _ = padded([(row, []) for row, _ in rows], int(tokenizer.pad_token_id or 0))
        labels, _ = padded([(row, []) for _, row in rows], IGNORED)
        yield ids, labels


def _round(tokenizer: PreTrainedTokenizerFast, rng: Random, num_shelves: int) -> tuple[list[int], list[int]]:
    """Token ids and labels of a round with mistakes."""
    hall = Hall(rng, num_shelves)
    tools = "".join(f" {tool['function']['name']}" for tool in OFFERED)
    head = "" if rng.random() < WITHOUT_TOOLS else f"<|system|>{tools}<|end|>"
    ids = tokenizer.encode(f"{head}<|user|>{hall.text}<|end|><|assistant|>")
    labels = [IGNORED] * len(ids)
    while True:
        says, name = hall.right, ""
        if len(hall.used) < num_shelves:
            name = RIGHT[hall.seals[len(hall.used)]]
            if (chance := rng.random()) < WRONG:
                name = REPAIR if name == KEEP else KEEP
            says, name = (GIVEN_UP, "") if WRONG <= chance < WRONG + EARLY else (written(name), name)
        own = tokenizer.encode(f"{says}<|end|>")
        ids, labels = ids + own, labels + own
        if not name:
            return ids, labels
        seen = tokenizer.encode(f"<|tool|>{json.dumps(hall.call(name))}<|end|><|assistant|>")
        ids, labels = ids + seen, labels + [IGNORED] * len(seen)
