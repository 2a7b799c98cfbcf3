"""What an engine had computed before, as each API tells it; and who may share it with whom."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from runtime.database import Database
from runtime.metrics import CACHED_TOKENS
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.world import make_tokenizer
from tests.unit.services.serving import make_key, wait_until

NUM_PROMPT = len(make_tokenizer().encode("<|user|>table for 4<|end|><|assistant|>").ids)
USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def count() -> float:
    return float(CACHED_TOKENS._value.get())


@pytest.mark.parametrize("told", [[], [0], [7]])
def test_chat_completions_tell_it_whole_and_streamed(inference: Inference, told: list[int]) -> None:
    inference.engine.cached = told
    before = count()
    answers = [inference.ask().usage, list(inference.ask(**USAGE))[-1].usage]
    for usage in answers:
        assert usage.prompt_tokens_details.cached_tokens == sum(told)
        assert usage.prompt_tokens == NUM_PROMPT
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert count() - before == 2 * sum(told)


def test_a_prompt_counts_once_however_many_choices_it_has(inference: Inference) -> None:
    inference.engine.cached = [5]
    assert inference.ask(n=3).usage.prompt_tokens_details.cached_tokens == 5
    inference.engine.requests.clear()
    inference.engine.cached = [7, 2, 7]
    assert inference.ask(n=3).usage.prompt_tokens_details.cached_tokens == 2, "what all of them had"


def test_more_than_the_prompt_is_never_told(inference: Inference) -> None:
    inference.engine.cached = [10_000]
    assert inference.ask().usage.prompt_tokens_details.cached_tokens == NUM_PROMPT


def test_completions_tell_it_for_all_prompts_together(inference: Inference) -> None:
    inference.engine.cached = [4]
    asked: dict[str, Any] = {"model": "demo", "prompt": ["Once upon", "a time"]}
    assert inference.client.completions.create(**asked).usage.prompt_tokens_details.cached_tokens == 8
    *_, last = inference.client.completions.create(**asked, **USAGE)
    assert last.usage.prompt_tokens_details.cached_tokens == 8


def test_responses_tell_it_whole_and_streamed(inference: Inference) -> None:
    inference.engine.cached = [7]
    asked: dict[str, Any] = {"model": "demo", "input": "table for 4"}
    whole = inference.client.responses.create(**asked)
    *_, last = inference.client.responses.create(**asked, stream=True)
    for usage in (whole.usage, last.response.usage):
        assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (NUM_PROMPT, 7)


@pytest.mark.parametrize("stream", [False, True])
def test_messages_tell_it_beside_the_other_input_tokens(inference: Inference, *, stream: bool) -> None:
    inference.engine.cached = [7]
    body = {"model": "demo", "max_tokens": 30, "messages": [{"role": "user", "content": "table for 4"}]}
    headers = {"x-api-key": inference.key, "anthropic-version": "2023-06-01"}
    answer = httpx.post(f"{inference.url}/v1/messages", json=body | {"stream": stream}, headers=headers, timeout=20)
    told = f'"input_tokens":{NUM_PROMPT - 7},"cache_creation_input_tokens":0,"cache_read_input_tokens":7'
    assert answer.text.count(told) == (2 if stream else 1), "at the start of a stream, and at its end"


@pytest.mark.usefixtures("alone")
def test_tenants_roles_and_purposes_share_no_prefix(inference: Inference, database: Database) -> None:
    def salt_of(client: openai.OpenAI, **headers: str) -> str:
        client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "hi"}], extra_headers=headers
        )
        return str(inference.engine.requests[-1]["cache_salt"])

    def of(key: str) -> openai.OpenAI:
        return inference.client.with_options(api_key=key)

    usual = salt_of(inference.client)
    assert salt_of(of(make_key(database))) == usual, "another key of the tenant"
    others = [
        salt_of(of(make_key(database, tenant="acme"))),
        salt_of(inference.operator),
        *(salt_of(inference.operator, **{"x-millrace-purpose": purpose}) for purpose in ("sentinel", "rollout")),
    ]
    assert len({usual, *others}) == 5
    assert "stream_options" not in inference.engine.requests[-1], "ours tells it with the first token"
    inference.engine.version, inference.engine.resident = 4, {4}
    wait_until(lambda: salt_of(inference.client) != usual)
