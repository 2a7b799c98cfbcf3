"""A policy whose answers are known: each token says which tokens may follow it, and nothing else counts.

A Llama whose attention and feed-forward layers give zero, so that its logits are a table from the last token to the next. A piece of
an answer is one token of its own; the last token of the prompt, which the user's message ends with, begins the answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from tests.chat_templates.bundled import make_bundled

CONTEXT = 8192
_TAIL = "{%- if add_generation_prompt and messages[-1].role == 'user' %}{{ messages[-1].content }}{% endif %}"
"""The template repeats the user's message where the answer begins."""


def build_chain(folder: Path, template: str, follows: Mapping[str, Sequence[str]], ends: Sequence[str]) -> Path:
    """Write the policy.

    Args:
        folder: of the checkpoint.
        template: one of `bundled_names`.
        follows: by piece, what may follow it, each with the same probability. After any other token the answer ends.
        ends: tokens that end an answer; the first is the usual one.
    """
    make_bundled(folder, template)
    source = folder / "chat_template.jinja"
    source.write_text(source.read_text() + _TAIL)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    pieces = dict.fromkeys([*follows, *(piece for next_ones in follows.values() for piece in next_ones)])
    new = [piece for piece in pieces if tokenizer.token_to_id(piece) is None]
    tokenizer.add_tokens([AddedToken(piece, special=False, normalized=False) for piece in new])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": ends[0]}))
    end_ids = [_id(tokenizer, text) for text in ends]
    table = {_id(tokenizer, piece): [_id(tokenizer, one) for one in next_ones] for piece, next_ones in follows.items()}
    model = _model(tokenizer.get_vocab_size(), table, end_ids)
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, eos_token_id=end_ids)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def _model(num_tokens: int, table: Mapping[int, Sequence[int]], end_ids: Sequence[int]) -> Any:
    size = math.ceil(num_tokens / 64) * 64
    config = LlamaConfig(
        vocab_size=size, hidden_size=size, intermediate_size=64, num_hidden_layers=1, num_attention_heads=size // 64,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=CONTEXT, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=end_ids[0],
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    with torch.no_grad():
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(size))
        model.lm_head.weight.zero_()
        for token in range(size):
            for following in table.get(token, (end_ids[0],)):
                model.lm_head.weight[following, token] = 1.0  # the norm makes it sqrt(size), far above the others' zero
    return model


def _id(tokenizer: Tokenizer, text: str) -> int:
    number = tokenizer.token_to_id(text)
    assert number is not None, text
    return int(number)
