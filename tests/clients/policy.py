"""Makes the policy that the clients talk to, in `trained/`: `python -m tests.clients.policy`, ten minutes on one core.

The demo's tokenizer with a few added tokens, a chat template of the Hermes and Qwen family, and a tiny Llama that has learned
`lessons.py` by heart. So a real engine answers with proper calls, JSON and reasoning.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from examples.reservations.fitting import fit, padded, save
from tests.clients.lessons import Lesson, lesson
from tests.clients.policy_digest import BASE, MARK, POLICY, digest

HERE = Path(__file__).parent
START, END = "<|im_start|>", "<|im_end|>"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CONTEXT = 2048
BATCH_SIZE = 16
MAX_LEARNING_RATE = 4e-3
WARM_UP_STEPS = 30
_BATCHES_SORTED = 8


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The demo's merges; what begins and ends a turn is special, what an assistant writes is not, as in Qwen3."""
    tokenizer = Tokenizer.from_file(str(BASE / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in (START, END)])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",  # noqa: S106 a token of text
        eos_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
        chat_template=(HERE / "chat_template.jinja").read_text(),
    )


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """Untrained."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=math.ceil(len(tokenizer) / 64) * 64,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config)


def ids_of(tokenizer: PreTrainedTokenizerFast, told: Lesson) -> tuple[list[int], list[int]]:
    """Prompt and answer."""
    prompt = told.raw or tokenizer.apply_chat_template(
        told.messages, tools=told.tools or None, tokenize=False, add_generation_prompt=True
    )
    return tokenizer.encode(prompt), tokenizer.encode(told.answer + END)


def _batches(tokenizer: PreTrainedTokenizerFast, dice: Random) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Rows of similar length share a batch: lengths differ twentyfold, and padding would take most of the time."""
    while True:
        rows = [ids_of(tokenizer, lesson(dice)) for _ in range(BATCH_SIZE * _BATCHES_SORTED)]
        rows.sort(key=lambda row: len(row[0]) + len(row[1]))
        groups = [rows[start : start + BATCH_SIZE] for start in range(0, len(rows), BATCH_SIZE)]
        dice.shuffle(groups)
        for group in groups:
            yield padded(group, int(tokenizer.pad_token_id))


def main() -> None:
    """Make it, if the folder does not hold this one yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.policy", description=__doc__)
    parser.add_argument("--num-steps", type=int, default=650)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if MARK.exists() and MARK.read_text() == digest():
        return
    shutil.rmtree(POLICY, ignore_errors=True)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, options.seed)
    batches = _batches(tokenizer, Random(options.seed))
    loss = fit(model, batches, options.num_steps, MAX_LEARNING_RATE, WARM_UP_STEPS)
    sys.stdout.write(f"{model.num_parameters():,} parameters, loss {loss:.4f}\n")
    save(model, tokenizer, POLICY)
    MARK.write_text(digest())


if __name__ == "__main__":
    main()
