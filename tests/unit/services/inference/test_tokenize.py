"""`POST /tokenize`, and the key that comes in either of two headers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from contracts.errors import Unauthorized
from services.http import authorization_of
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.world import CONTEXT, make_tokenizer

HELLO = [{"role": "user", "content": "hi"}]


def tokenize(inference: Inference, **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {inference.key}"}
    return httpx.post(f"{inference.url}/tokenize", json=body, headers=headers, timeout=20)


def test_messages_are_those_of_a_chat(inference: Inference) -> None:
    ids = make_tokenizer().encode("<|user|>hi<|end|><|assistant|>").ids
    inference.ask(messages=HELLO)
    assert inference.engine.requests[-1]["token_ids"] == ids
    answer = tokenize(inference, model="demo", messages=HELLO).json()
    assert answer == {"count": len(ids), "max_model_len": CONTEXT, "tokens": ids, "token_strs": None}
    closed = tokenize(inference, messages=HELLO, add_generation_prompt=False, return_token_strs=True).json()
    assert closed["tokens"] == ids[:-1]
    assert closed["token_strs"] == ["<|user|>", "h", "i", "<|end|>"]
    assert len(inference.logged()) == 1


def test_a_prompt_is_taken_as_it_is(inference: Inference) -> None:
    answer = tokenize(inference, prompt="<|user|>hi", return_token_strs=True).json()
    assert answer["token_strs"] == ["<|user|>", "h", "i"]
    assert tokenize(inference, prompt="x" * CONTEXT, add_special_tokens=False).json()["count"] == CONTEXT


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "messages"),
        ({"prompt": "x", "messages": HELLO}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, "messages[0].role"),
        ({"prompt": "x", "add_generation_prompt": False}, 400, "prompt"),
        ({"messages": HELLO, "add_special_tokens": True}, 400, "add_special_tokens"),
        ({"messages": HELLO, "continue_final_message": True}, 400, "continue_final_message"),
        ({"messages": HELLO, "chat_template": "x"}, 400, "chat_template"),
        ({"messages": HELLO, "chat_template_kwargs": {"tools": 1}}, 400, "chat_template_kwargs"),
        ({"messages": HELLO, "message": HELLO}, 400, "message"),
        ({"messages": HELLO, "model": "x"}, 404, "model"),
        ({"prompt": "x", "model": "x"}, 404, "model"),
        ({"prompt": "x" * 10_000}, 400, "prompt"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    inference: Inference, body: dict[str, Any], status: int, param: str
) -> None:
    answer = tokenize(inference, **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_key_comes_in_either_header() -> None:
    assert authorization_of({}) == ""
    assert authorization_of({"authorization": "bearer k"}) == "bearer k"
    assert authorization_of({"x-api-key": "k"}) == authorization_of({"x-api-key": "k", "authorization": "Bearer k"})
    for other in ("Bearer j", "Bearer", "Basic j"):
        with pytest.raises(Unauthorized, match="different keys"):
            authorization_of({"x-api-key": "k", "authorization": other})
