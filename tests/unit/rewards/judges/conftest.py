"""A judge server whose verdict is `yes` where the answer contains "right", and a client for it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from rewards.judges.registry import new_http
from tests.worlds.servers.judge import JudgeServer, judge_server, verdict


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    with judge_server(lambda asked: verdict("yes" if "right" in asked.answer else "no")) as running:
        yield running


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    with new_http() as client:
        yield client
