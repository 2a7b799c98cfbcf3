"""The demo policy's tokenizer: a small byte-level BPE in which the fixed parts of an answer are single tokens."""

from itertools import islice
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from examples.reservations.sentences import requests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

VOCABULARY_SIZE = 768
CONTEXT = 512
PAD, END = "<|pad|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

# The fixed JSON parts come first, so that no merge joins them with a value.
WORD = r"""\{"party":|,"time":"|","name":"|"\}|:[0-9]{2}| ?[0-9]{1,2}| ?\p{L}+|\s+|[^\s\p{L}0-9]"""

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|assistant|>' -}}
{%- endif -%}
"""


def build_tokenizer(seed: int, num_requests: int = 6000) -> PreTrainedTokenizerFast:
    """Train the merges on training sentences and their answers; any other text falls back to bytes."""
    return as_chat(train_merges(_corpus(seed, num_requests), WORD, ROLES, VOCABULARY_SIZE), ROLES, CHAT_TEMPLATE)


def train_merges(texts: "Iterable[str]", word: str, roles: tuple[str, ...], vocabulary_size: int) -> Tokenizer:
    """A byte-level BPE whose merges stay within matches of `word`; marks of roles are special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(word), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ],
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PAD, END, *roles],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def as_chat(tokenizer: Tokenizer, roles: tuple[str, ...], template: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a policy, with its chat template."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=list(roles),
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT,
        chat_template=template,
    )


def _corpus(seed: int, num_requests: int) -> "Iterator[str]":
    for request in islice(requests("train", seed), num_requests):
        yield request.sentence
        yield request.booking.json()
        for confusion in request.confusions:
            yield confusion.json()
