"""Makes the policy that the clients talk to: `python -m tests.clients.policy FOLDER`, a minute or two on one core.

The demo's tokenizer with a few added tokens, a chat template of the Hermes and Qwen family, and a tiny Llama that has learned
`lessons.py` by heart. So a real engine answers with proper calls, JSON and reasoning.
"""

# ruff: noqa: N806 - tensors carry the letters of their dimensions: B requests, L tokens

from __future__ import annotations

import argparse
import math
import shutil
import sys
import time
from pathlib import Path
from random import Random

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.clients.lessons import Lesson, lesson
from tests.clients.policy_digest import BASE, digest

HERE = Path(__file__).parent
START, END = "<|im_start|>", "<|im_end|>"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CONTEXT = 2048
BATCH_SIZE = 16
MAX_LEARNING_RATE = 4e-3
IGNORED = -100


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
    prompt = tokenizer.apply_chat_template(
        told.messages, tools=told.tools or None, tokenize=False, add_generation_prompt=True
    )
    return tokenizer.encode(prompt), tokenizer.encode(told.answer + END)


def _batch(tokenizer: PreTrainedTokenizerFast, dice: Random) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [ids_of(tokenizer, lesson(dice)) for _ in range(BATCH_SIZE)]
    length = max(len(prompt) + len(answer) for prompt, answer in rows)
    input_ids_BL = torch.full((BATCH_SIZE, length), int(tokenizer.pad_token_id))
    labels_BL = torch.full((BATCH_SIZE, length), IGNORED)
    for row, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        input_ids_BL[row, :end] = torch.tensor(prompt + answer)
        labels_BL[row, len(prompt) : end] = torch.tensor(answer)
    return input_ids_BL, labels_BL


def train(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, num_steps: int, seed: int) -> float:
    """Learn in place; returns the mean loss of the last tenth of the steps, in nats per token."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=MAX_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, step / 30) * 0.5 * (1 + math.cos(math.pi * step / num_steps))
    )
    dice, losses = Random(seed), list[float]()
    started = time.monotonic()
    for step in range(num_steps):
        input_ids_BL, labels_BL = _batch(tokenizer, dice)
        loss = model(input_ids=input_ids_BL, labels=labels_BL).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 49:
            mean = sum(losses[-50:]) / 50
            sys.stdout.write(f"step {step + 1}: loss {mean:.4f}, {time.monotonic() - started:.0f} s\n")
    last = losses[-num_steps // 10 :]
    return sum(last) / len(last)


def main() -> None:
    """Make it, if the folder does not hold this one yet."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.policy", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num-steps", type=int, default=340)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder, mark = options.folder, options.folder / ".digest"
    if mark.exists() and mark.read_text() == digest():
        return
    shutil.rmtree(folder, ignore_errors=True)
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, options.seed)
    loss = train(model, tokenizer, options.num_steps, options.seed)
    sys.stdout.write(f"{model.num_parameters():,} parameters, loss {loss:.4f}\n")
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    mark.write_text(digest())


if __name__ == "__main__":
    main()
