"""Messages to token ids and back, without transformers: the base folder's chat template and its tokenizer.

The same ids as `AutoTokenizer.from_pretrained(base).apply_chat_template(messages, add_generation_prompt=True)` of
transformers 5.23.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import snapshot_download
from tokenizers import Tokenizer

from contracts.errors import ContextLengthExceeded, InvalidRequest, InvalidSettings
from services.inference.sandbox import make_sandbox

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_REASONING = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """Template and tokenizer of one base policy.

    Attributes:
        context: how many tokens prompt and answer may have together.
        tokenizer: the policy's tokenizer.
    """

    def __init__(self, folder: Path) -> None:
        settings = _read(folder, "tokenizer_config.json")
        self.context = _context_of(_read(folder, "config.json"), folder)
        self.tokenizer = _tokenizer_of(folder)
        # No token stands for more characters than its own name has, so a text longer than this cannot fit.
        self.most_characters = self.context * max(map(len, self.tokenizer.get_vocab()), default=1)
        self._special = _special_tokens(settings)
        try:
            self._template = make_sandbox().from_string(_template_of(folder, settings))
        except jinja2.TemplateError as error:
            raise InvalidSettings(f"{folder}: the chat template is not valid: {error}") from error
        # jinja2 goes through all of them on every render, and its own chain of dicts is slow at that.
        self._template.globals = dict(self._template.globals)

    def render(self, messages: list[dict[str, Any]]) -> str:
        """The prompt as text.

        Raises:
            InvalidRequest: the template refuses these messages, in its own words.
        """
        if not messages:
            raise InvalidRequest("send at least one message", param="messages")
        try:
            return self._template.render(
                messages=[_with_reasoning(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special,
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise InvalidRequest(f"the chat template refused the messages: {error}", param="messages") from error

    def encode(self, messages: list[dict[str, Any]]) -> list[int]:
        """The prompt as token ids; long ones take a while, during which other threads run.

        Raises:
            InvalidRequest: see `render`.
            ContextLengthExceeded: so long a text that its tokens need no counting.
        """
        text = self.render(messages)
        if len(text) > self.most_characters:
            raise ContextLengthExceeded(
                f"the prompt has {len(text)} characters; this policy's context of {self.context} tokens holds at most "
                f"{self.most_characters}",
                param="messages",
            )
        return list(self.tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def load_template(base: str) -> ChatTemplate:
    """Template and tokenizer of a folder, or of a hub id (downloaded once).

    Raises:
        InvalidSettings: a file is missing or not what it should be.
    """
    folder = Path(base)
    if not folder.is_dir():
        folder = Path(snapshot_download(base, allow_patterns=["*.json", "*.jinja"]))
    return ChatTemplate(folder)


def _text(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text()
    except OSError as error:
        raise InvalidSettings(f"{folder / name}: {error.strerror}; is this the folder of a base policy?") from error


def _tokenizer_of(folder: Path) -> Tokenizer:
    content = _text(folder, "tokenizer.json")
    try:
        tokenizer = Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing more specific
        raise InvalidSettings(f"{folder / 'tokenizer.json'}: not a tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read(folder: Path, name: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(_text(folder, name))
    except ValueError as error:
        raise InvalidSettings(f"{folder / name}: {error}") from error
    return content


def _context_of(config: dict[str, Any], folder: Path) -> int:
    for part in (config, config.get("text_config", {})):
        for name in ("max_position_embeddings", "n_positions"):
            if isinstance(part.get(name), int):
                return int(part[name])
    raise InvalidSettings(f"{folder / 'config.json'}: max_position_embeddings is missing")


def _template_of(folder: Path, settings: dict[str, Any]) -> str:
    if (folder / "chat_template.jinja").exists():
        return _text(folder, "chat_template.jinja")
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = {item["name"]: item["template"] for item in template}.get("default")
    if not isinstance(template, str):
        raise InvalidSettings(f"{folder}: no chat_template.jinja, and no chat_template in tokenizer_config.json")
    return template


def _special_tokens(settings: dict[str, Any]) -> dict[str, str]:
    found = {name: settings.get(name) for name in _SPECIAL_TOKENS}
    texts = {name: token["content"] if isinstance(token, dict) else token for name, token in found.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """Reasoning under every name that templates read it by."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}
