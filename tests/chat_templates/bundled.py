"""The chat templates that trl bundles: those of published policies, each with a small tokenizer that knows their control tokens."""

from __future__ import annotations

import json
import re
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken

from runtime.template.chat_template import ChatTemplate, load_template
from tests.chat_templates import CONTEXT, byte_tokenizer

BOS, EOS = "<|bos_qz|>", "<|eos_qz|>"
_SPECIAL = re.compile(r"<\|[a-z_]+\|?>|<[a-z_]+\|>|<\uff5c[^\uff5c<>]+\uff5c>|<\|\"\|>|<\|[A-Z_]+\|>")
_SPOKEN = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
_NOT_WRITTEN = ("<|call|>", "<|constrain|>", "<|return|>", "<|eom|>", "<|eot|>")
"""Tokens that templates leave to the model."""


@cache
def _folder() -> Path:
    spec = find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "chat_templates"


def bundled_names() -> list[str]:
    """The templates for inference; those for training differ only in marks for the loss."""
    return sorted(path.stem for path in _folder().glob("*.jinja") if not path.stem.endswith("_training"))


def bundled_source(name: str) -> str:
    return (_folder() / f"{name}.jinja").read_text()


def special_tokens(source: str) -> list[str]:
    extra = [text for text in _NOT_WRITTEN if "<|channel|>" in source or "<|message|>" in source]
    return sorted({BOS, EOS, *_SPECIAL.findall(source), *extra})


def spoken_tokens(source: str) -> list[str]:
    return sorted(set(_SPOKEN.findall(source)))


def make_bundled(folder: Path, name: str) -> Path:
    """The files that inference reads, for one of `bundled_names`."""
    folder.mkdir(parents=True, exist_ok=True)
    source = bundled_source(name)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special_tokens(source)])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in spoken_tokens(source)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "bos_token": BOS,
        "eos_token": EOS,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(source)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": CONTEXT}))
    return folder


class BundledTemplates(dict[str, ChatTemplate]):
    """Each of `bundled_names` as inference loads it, for tests that only read: loaded when asked for, once a process."""

    def __missing__(self, name: str) -> ChatTemplate:
        return _loaded(name)


@cache
def _loaded(name: str) -> ChatTemplate:
    with tempfile.TemporaryDirectory(prefix="millrace-bundled-") as folder:
        return load_template(str(make_bundled(Path(folder), name)))
