"""The section [provider]: a model of somebody else that answers in this home. The address and the name; its key stays in the environment."""

from __future__ import annotations

import re
from typing import Literal, get_args

from pydantic import Field

from contracts.errors import InvalidSettings
from runtime.secret_values import secret_value
from runtime.settings import Section, Settings, load_section, read_home_settings

Spoken = Literal["chat", "responses", "messages"]
KEY = "MILLRACE_PROVIDER_KEY"
_IS_KEY = re.compile("[!-~]+").fullmatch
_KNOWN: dict[str, tuple[str, str, tuple[Spoken, ...]]] = {
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY", ("chat", "responses")),
    "anthropic": ("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", ("messages", "chat")),
}
"""By name: the URL, the variable of the key, and what is spoken there."""


class ProviderSettings(Section):
    """Who stands in front of a policy, or in its place. Empty: nobody does."""

    url: str = Field(default="", pattern=r"^(https?://[^@?#/\s]+(/[^@?#/\s]+)*)?$")
    """Where the provider is, as its SDK's `base_url`. Empty: there is none."""
    model: str = Field(default="", max_length=128)
    """The provider's name of the model."""
    dialects: tuple[Spoken, ...] = Field(default=get_args(Spoken), min_length=1)
    """What it speaks: `chat`, `responses`, `messages`. Other requests are refused."""
    key_from: str = KEY
    """The variable with its key; or NAME_FILE."""
    may_train: bool = False
    """True if its terms let other models learn from its answers."""
    input_price: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """US dollars for a million tokens of prompts."""
    output_price: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """The same of answers."""

    @property
    def origin(self) -> str:
        """Who answers: a known provider's name, or the host of its URL."""
        return self.url.split("/")[2][:64] if self.name is None else self.name

    @property
    def name(self) -> str | None:
        """Of a known provider; None: another one."""
        return next((name for name, (url, *_) in _KNOWN.items() if url == self.url), None)

    @property
    def key(self) -> str | None:
        """The key, from the environment; None: none is set, and none is sent. Raises InvalidSettings: it is no key, or a known provider needs one."""
        found = secret_value(self.key_from)
        if found is None and self.name is not None:
            raise InvalidSettings(f"{self.key_from} is not set: {self.name} answers nobody without a key")
        if found is not None and not _IS_KEY(found):  # an HTTP library would quote it in its error
            raise InvalidSettings(f"{self.key_from} is no key: it has a space, a line end or a letter outside of ASCII")
        return found

    @property
    def terms(self) -> str:
        """Whether other models may learn from its answers, in words."""
        return f"may train other models: {'yes' if self.may_train else 'no'} ([provider] may_train)"

    @property
    def says(self) -> str:
        """What is said where versions are asked for, in a home without any."""
        return f"{self.model} at {self.url} answers here, so there are no versions, engines and trainer; {self.terms}"

    def cost_of(self, prompt_tokens: int | None, completion_tokens: int | None) -> float | None:
        """US dollars; None: prices or counts are not known."""
        if None in {self.input_price, self.output_price, prompt_tokens, completion_tokens}:
            return None
        return (
            (prompt_tokens or 0) * (self.input_price or 0) + (completion_tokens or 0) * (self.output_price or 0)
        ) / 1e6


def chosen(provider: str, model: str) -> dict[str, object]:
    """The fields that `up --provider` decides: those of a known name, or of a URL."""
    if provider not in _KNOWN:
        return {"url": provider.rstrip("/"), "model": model}
    url, key_from, dialects = _KNOWN[provider]
    return {"url": url, "model": model, "key_from": key_from, "dialects": dialects}


def load_provider(settings: Settings) -> ProviderSettings | None:
    """The provider in front of the policy of this home, or in its place, if it has no `base`. None: there is none. Raises InvalidSettings."""
    if settings.base and read_home_settings(settings.home) is None:
        return None
    found = load_section(settings.home, "provider", ProviderSettings)
    if found.url and found.model:
        return found
    if found.url or found.model:
        raise InvalidSettings(f"[provider] lacks its {'model' if found.url else 'url'}: set both, or neither")
    if not settings.base:
        raise InvalidSettings("nothing answers here: set `base`, or `url` and `model` of [provider]")
    return None
