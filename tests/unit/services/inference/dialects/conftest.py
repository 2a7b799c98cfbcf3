from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.test_tools import serving

__all__ = ["serving"]
Send = Callable[..., httpx.Response]
HELLO = [{"role": "user", "content": "table for 4"}]


@pytest.fixture
def send(inference: Inference) -> Send:
    """A request for a message, as Anthropic's clients send it."""

    def sent(path: str = "/v1/messages", headers: dict[str, str] | None = None, **changes: Any) -> httpx.Response:
        known = {"x-api-key": inference.key, "anthropic-version": "2023-06-01"}
        body = {"model": "demo", "max_tokens": 30, "messages": HELLO} | changes
        return httpx.post(f"{inference.url}{path}", json=body, headers=known | (headers or {}), timeout=20)

    return sent


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream; the name of each is its type."""
    found = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        content = json.loads(data.removeprefix("data: "))
        assert name == f"event: {content['type']}"
        found.append(content)
    return found
