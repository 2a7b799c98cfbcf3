"""The agent's tokenizer: a small byte-level BPE in which the fixed parts of calls and results are single tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from examples.support.cases import PLACES, REPLIES, cases, on_its_way
from examples.support.shop import TOOLS
from examples.support.teacher import Move, play

VOCABULARY_SIZE = 832
CONTEXT = 512
PAD, END = "<|pad|>", "<|end|>"
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
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=[PAD, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(seed, num_cases), trainer)
    # What begins and ends a turn is special; what an assistant writes is not, as in Qwen3.
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
        chat_template=_TEMPLATE.read_text().rstrip("\n"),
    )


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
