"""The section [provider]: where somebody else's model is, and what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.errors import InvalidSettings
from runtime.settings import make_section, write_settings
from services.provider import ProviderSettings, chosen, load_provider
from tests.unit.services.serving import make_home


def test_known_providers_have_a_url_a_key_and_dialects_of_their_own() -> None:
    found = ProviderSettings.model_validate(chosen("anthropic", "claude-x"))
    assert (found.origin, found.key_from, found.dialects) == ("anthropic", "ANTHROPIC_API_KEY", ("messages", "chat"))
    assert ProviderSettings.model_validate(chosen("openai", "gpt-x")).url == "https://api.openai.com/v1"


def test_another_one_is_a_url_that_speaks_what_it_speaks_and_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLRACE_PROVIDER_KEY", raising=False)
    found = ProviderSettings.model_validate(chosen("http://127.0.0.1:4000/v1/", "m"))
    assert (found.url, found.origin, found.key) == ("http://127.0.0.1:4000/v1", "127.0.0.1:4000", None)
    assert found.dialects == ("chat", "responses", "messages")


def test_a_known_provider_answers_nobody_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(InvalidSettings, match="OPENAI_API_KEY is not set"):
        _ = ProviderSettings.model_validate(chosen("openai", "m")).key
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert ProviderSettings.model_validate(chosen("openai", "m")).key == "sk-1"


@pytest.mark.parametrize(
    "url",
    [
        "api.example.com/v1",
        "https://user:secret@example.com/v1",
        "ftp://example.com",
        "https://x/v1?key=1",
        "https:///v1",
        "https://a b/v1",
    ],
)
def test_a_url_that_is_none_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(InvalidSettings, match="url"):
        make_section("[provider]", ProviderSettings, **chosen(url, "m"))


def test_a_cost_needs_prices_and_counts() -> None:
    priced = ProviderSettings(input_price=2.0, output_price=8.0)
    assert priced.cost_of(1_000_000, 500_000) == 6.0
    assert priced.cost_of(None, 3) is None
    assert ProviderSettings(input_price=2.0).cost_of(1, 1) is None
    assert not priced.may_train


@pytest.mark.parametrize("key", ["sk-1\n", "sk 1", "sk\N{EN DASH}1", "sk-\x01"])
def test_a_key_that_no_header_carries_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MILLRACE_PROVIDER_KEY", key)
    with pytest.raises(InvalidSettings, match="MILLRACE_PROVIDER_KEY is no key") as raised:
        _ = ProviderSettings.model_validate(chosen("http://127.0.0.1:1", "m")).key
    assert key not in raised.value.message


def test_a_home_with_neither_a_policy_nor_a_provider_says_so(tmp_path: Path) -> None:
    settings = make_home(tmp_path).model_copy(update={"base": ""})
    write_settings(settings, {"provider": ProviderSettings()})
    with pytest.raises(InvalidSettings, match="nothing answers here"):
        load_provider(settings)
