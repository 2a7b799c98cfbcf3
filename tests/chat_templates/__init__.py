"""Chat templates in the manner of four families of policies, and tiny tokenizers that know their control tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

HERE = Path(__file__).parent
CONTEXT = 100_000


class Family(NamedTuple):
    """A template and the control tokens of its tokenizer.

    Attributes:
        special: special tokens.
        spoken: other added tokens, which the template says and assistants may say too.
        pieces: True for a tokenizer that marks spaces and keeps control tokens in its vocabulary, as SentencePiece does.
    """

    name: str
    special: tuple[str, ...]
    spoken: tuple[str, ...] = ()
    bos: str | None = None
    eos: str | None = None
    pieces: bool = False

    @property
    def controls(self) -> tuple[str, ...]:
        return self.special + self.spoken


CHATML = Family(
    "chatml",
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|box_start|>"),
    ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    eos="<|im_end|>",
)
LLAMA3 = Family(
    "llama3",
    (
        "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
        "<|python_tag|>", "<|reserved_special_token_0|>",
    ),
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
)  # fmt: skip
GEMMA = Family(
    "gemma",
    ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "[multimodal]"),
    bos="<bos>",
    eos="<end_of_turn>",
    pieces=True,
)
MISTRAL = Family(
    "mistral",
    (
        "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]",
    ),
    bos="<s>",
    eos="</s>",
)  # fmt: skip
FAMILIES = (CHATML, LLAMA3, GEMMA, MISTRAL)


def make_family(folder: Path, family: Family) -> Path:
    """The files that inference reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _pieces(family) if family.pieces else byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in family.special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.spoken])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": family.bos, "eos_token": family.eos}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    settings |= {name: text for name, text in named.items() if text}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text((HERE / f"{family.name}.jinja").read_text())
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": CONTEXT}))
    return folder


def byte_tokenizer() -> Tokenizer:
    """One token for each byte, and a few merges, so that the border of a text matters."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "<"), ("<", "|"), ("|", ">"), ("i", "m"), ("e", "n"), ("Ċ", "Ċ"), ("t", "h"), ("th", "e")]
    words = [*alphabet, *(first + second for first, second in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pieces(family: Family) -> Tokenizer:
    """Characters, bytes for the rest; the vocabulary holds the control tokens too."""
    letters = [chr(number) for number in range(33, 127)] + ["▁", "\n"]
    words = ["<unk>", *family.special, *(f"<0x{number:02X}>" for number in range(256)), *letters, "▁t", "▁th"]
    vocab = {word: number for number, word in enumerate(words)}
    model = models.BPE(
        vocab=vocab, merges=[("▁", "t"), ("▁t", "h")], unk_token=words[0], fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer
