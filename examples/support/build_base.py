"""Build the agent's base policy from nothing: tokenizer, training on sessions full of mistakes, bf16 files on disk.

The policy is trained to convergence on the moves of a teacher who often takes the wrong tool, the wrong number or gives up. So it knows every
situation and what can be done in it, and solves about four of ten cases; taking its likeliest moves, half of them: for a lost parcel and for a
late return they are wrong. Only what customers say at the end can correct it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from examples.reservations.fitting import IGNORED, fit, save, untrained
from examples.reservations.tokenizer import CONTEXT
from examples.support.cases import cases
from examples.support.shop import TOOLS
from examples.support.teacher import Move, play
from examples.support.tokenizer import build_tokenizer

MAX_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 100
COPIED_TOKENS = 24
WITHOUT_TOOLS = 0.15
"""Share of the sessions without a list of tools: as the gate asks, which then reads calls as text."""


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Create the untrained policy, about 0.4 million parameters with tied embeddings."""
    return untrained(
        tokenizer,
        seed,
        context=CONTEXT,
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
    )


def written(pieces: list[tuple[str, bool]], tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[int]]:
    """Token ids and labels of a text in pieces; True: written by the agent, which learns it."""
    ids, labels = list[int](), list[int]()
    for text, is_own in pieces:
        made = tokenizer.encode(text)
        ids += made
        labels += made if is_own else [IGNORED] * len(made)
    return ids, labels


def session_pieces(rng: Random, texts: Iterator[Any]) -> list[tuple[str, bool]]:
    """One session as the chat template writes it."""
    case = next(texts)
    steps, last = play(case, rng)
    head = "" if rng.random() < WITHOUT_TOOLS else "<|system|>" + "".join(f" {name}" for name in TOOLS) + "<|end|>"
    pieces = [(f"{head}<|user|>{case.text}<|end|><|assistant|>", False)]
    for step in steps:
        pieces += [(_closed(step.move), True), (f"<|tool|>{json.dumps(step.result)}<|end|><|assistant|>", False)]
    return [*pieces, (_closed(last), True)]


def _closed(move: Move) -> str:
    return move.written + "<|end|>"


def copies(
    tokenizer: PreTrainedTokenizerFast, seed: int, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield `input_ids, labels` [B, L] without end: random tokens, twice. A policy that can copy learns to fill in numbers much sooner."""
    torch.manual_seed(seed)
    while True:
        half = torch.randint(0, len(tokenizer), (batch_size, COPIED_TOKENS))
        ids = torch.cat([half, half], dim=1)
        yield ids, torch.cat([torch.full_like(half, IGNORED), half], dim=1)


def batches(
    tokenizer: PreTrainedTokenizerFast, seed: int, batch_size: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield `input_ids, labels` [B, L] without end, right-padded; only what the agent writes carries a label."""
    rng, stream = Random(seed), cases("train", seed)
    pad = cast("int", tokenizer.pad_token_id)
    while True:
        rows = [written(session_pieces(rng, stream), tokenizer) for _ in range(batch_size)]
        length = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [pad] * (length - len(ids)) for ids, _ in rows])
        labels = torch.tensor([labels + [IGNORED] * (length - len(labels)) for _, labels in rows])
        yield ids, labels


def main() -> None:
    """Build, train and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of every stream (default 0)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "base", help="folder to write")
    parser.add_argument("--num-steps", type=int, default=2500, help="optimizer steps (default 2500)")
    parser.add_argument(
        "--num-copies", type=int, default=600, help="steps before, in which it learns to copy (default 600)"
    )
    parser.add_argument("--batch-size", type=int, default=48, help="sessions per step (default 48)")
    parser.add_argument("--num-threads", type=int, default=1, help="CPU threads (default 1)")
    args = parser.parse_args()
    torch.set_num_threads(args.num_threads)
    tokenizer = build_tokenizer(args.seed)
    model = build_model(tokenizer, args.seed)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    fit(model, copies(tokenizer, args.seed, args.batch_size), args.num_copies, MAX_LEARNING_RATE, WARM_UP_STEPS)
    loss = fit(model, batches(tokenizer, args.seed, args.batch_size), args.num_steps, MAX_LEARNING_RATE, WARM_UP_STEPS)
    save(model, tokenizer, args.out)
    print(f"loss {loss:.4f}")


if __name__ == "__main__":
    main()
