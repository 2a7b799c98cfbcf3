"""Build the demo's base policy from nothing: tokenizer, training on misread requests, bf16 files on disk.

The policy is trained to convergence on labels that are wrong more often than right, in systematic ways. So it knows every
wording and samples the right answer about half the time. Only signals of its users can correct it.
"""

import argparse
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch

from examples.reservations.fitting import fit, padded, save, untrained
from examples.reservations.measure import measure
from examples.reservations.sentences import Request, confused, requests
from examples.reservations.tokenizer import CONTEXT, build_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

# Some batches have a system message, so that the policy knows apps that send one.
SYSTEM_MESSAGES = ("You take reservations.", "Turn the request into a booking.", "You are a reservations assistant.")
SYSTEM_RATE = 0.15
MAX_LEARNING_RATE = 3e-3
WARM_UP_STEPS = 100


def build_model(tokenizer: "PreTrainedTokenizerFast", seed: int) -> "LlamaForCausalLM":
    """Create the untrained policy, about 0.7 million parameters with tied embeddings."""
    return untrained(
        tokenizer,
        seed,
        context=CONTEXT,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
    )


def noisy_answer(request: Request, rng: Random) -> str:
    """A training label: wrong at the confusion rate of this wording."""
    wrong = rng.random() < request.confusion_rate
    return (confused(request, rng) if wrong else request.booking).json()


def batches(
    tokenizer: "PreTrainedTokenizerFast", seed: int, batch_size: int
) -> "Iterator[tuple[torch.Tensor, torch.Tensor]]":
    """Yield `input_ids_BL, labels_BL` without end, right-padded; only the assistant's tokens carry a label."""
    stream, rng = requests("train", seed), Random(seed)
    pad = cast("int", tokenizer.pad_token_id)
    while True:
        # A whole batch shares the system message: mixed lengths would spend half the time on padding.
        system = f"<|system|>{rng.choice(SYSTEM_MESSAGES)}<|end|>" if rng.random() < SYSTEM_RATE else ""
        rows = [_example(tokenizer, system, request, rng) for request in islice(stream, batch_size)]
        yield padded(rows, pad)


def _example(
    tokenizer: "PreTrainedTokenizerFast", system: str, request: Request, rng: Random
) -> tuple[list[int], list[int]]:
    prompt = f"{system}<|user|>{request.sentence}<|end|><|assistant|>"
    return tokenizer.encode(prompt), tokenizer.encode(noisy_answer(request, rng) + "<|end|>")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of every stream (default 0)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "base", help="folder to write")
    parser.add_argument("--num-steps", type=int, default=3500, help="optimizer steps (default 3500)")
    parser.add_argument("--batch-size", type=int, default=64, help="requests per step (default 64)")
    parser.add_argument("--num-threads", type=int, default=1, help="CPU threads (default 1)")
    return parser.parse_args()


def main() -> None:
    """Build, train, save, then measure what was saved."""
    args = parse_arguments()
    torch.set_num_threads(args.num_threads)
    tokenizer = build_tokenizer(args.seed)
    model = build_model(tokenizer, args.seed)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)
    stream = batches(tokenizer, args.seed, args.batch_size)
    fit(model, stream, args.num_steps, MAX_LEARNING_RATE, WARM_UP_STEPS)
    save(model, tokenizer, args.out)
    saved: Any = LlamaForCausalLM.from_pretrained(args.out, dtype=torch.float32)
    for name, value in measure(saved, tokenizer, seed=args.seed).items():
        print(f"{name:24} {value:.3f}")


if __name__ == "__main__":
    main()
