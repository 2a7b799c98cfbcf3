"""The files of a base policy's folder that inference reads. Each function raises InvalidSettings if one is missing or not valid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from contracts.errors import InvalidSettings
from contracts.files import read_small

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MOST_FILE_BYTES = 2**28
"""Large vocabularies have tokenizers of 40 MB."""


def read_object(folder: Path, name: str) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = json.loads(_text(folder, name))
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"{folder / name}: {error}") from error
    if not isinstance(content, dict):
        raise InvalidSettings(f"{folder / name}: it is a {type(content).__name__}, not an object")
    return content


def context_of(config: dict[str, Any], folder: Path) -> int:
    """The most tokens that the policy takes. `config`: of `config.json`."""
    for part in (config, config.get("text_config", {})):
        for name in ("max_position_embeddings", "n_positions"):
            if isinstance(part.get(name), int):
                return int(part[name])
    raise InvalidSettings(f"{folder / 'config.json'}: max_position_embeddings is missing")


def tokenizer_of(folder: Path) -> Tokenizer:
    """The tokenizer, which neither cuts nor pads."""
    content = _text(folder, "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing more specific
        raise InvalidSettings(f"{folder / 'tokenizer.json'}: not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def template_of(folder: Path, settings: dict[str, Any]) -> str:
    """The source of the chat template. `settings`: of `tokenizer_config.json`."""
    if (folder / "chat_template.jinja").exists():
        return _text(folder, "chat_template.jinja")
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {item["name"]: item["template"] for item in template}.get("default")
    if not isinstance(template, str):
        raise InvalidSettings(f"{folder}: no chat_template.jinja, and no chat_template in tokenizer_config.json")
    return template


def special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    """The texts of the special tokens, by the names that templates use."""
    found = {name: settings.get(name) for name in SPECIAL_TOKENS}
    texts = {name: token["content"] if isinstance(token, dict) else token for name, token in found.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _text(folder: Path, name: str) -> str:
    path = folder / name
    try:
        return read_small(path, _MOST_FILE_BYTES).decode()
    except OSError as error:
        raise InvalidSettings(f"{path}: {error.strerror}; is this the folder of a base policy?") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(f"{path}: not UTF-8 ({error.reason})") from error
