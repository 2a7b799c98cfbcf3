"""The agent's tokenizer: a small byte-level BPE in which the fixed parts of calls and results are single tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from examples.reservations.tokenizer import as_chat, train_merges
from examples.support.cases import PLACES, REPLIES, cases, on_its_way
from examples.support.shop import TOOLS
from examples.support.teacher import Move, play

VOCABULARY_SIZE = 832
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
MARKS = ("<tool_call>", "</tool_call>")
# A number is two tokens, and what stands between values in JSON is one.
WORD = (
    r"""\n\{"name": "|", "arguments": \{"[a-z]+": "|"\}\}\n|"?, "[a-z]+": "?|\{"[a-z]+": "?|"?\}"""
    r"""|[0-9]{2}| ?[A-Za-z]+(?:_[a-z]+)*|[^A-Za-z0-9]"""
)
_TEMPLATE = Path(__file__).parent / "chat_template.jinja"


def build_tokenizer(seed: int, num_cases: int = 3000) -> PreTrainedTokenizerFast:
    """Train the merges on sessions; any other text falls back to bytes."""
    tokenizer = train_merges(_corpus(seed, num_cases), WORD, ROLES, VOCABULARY_SIZE)
    # What begins and ends a turn is special; what an assistant writes is not, as in Qwen3.
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return as_chat(tokenizer, ROLES, _TEMPLATE.read_text().rstrip("\n"))


def _corpus(seed: int, num_cases: int) -> Iterator[str]:
    rng = Random(seed)
    for case in islice(cases("train", seed), num_cases):
        steps, last = play(case, rng)
        yield case.text
        for step in steps:
            yield _between_marks(step.move)
            yield json.dumps(step.result)
        yield _between_marks(last)
    yield from REPLIES
    yield from map(on_its_way, PLACES)
    yield "".join(f" {name}" for name in TOOLS)


def _between_marks(move: Move) -> str:
    written = move.written
    for mark in MARKS:
        written = written.replace(mark, "")
    return written
