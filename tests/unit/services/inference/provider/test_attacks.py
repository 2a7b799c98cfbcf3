"""What callers and providers may send that would hurt others: secrets, other people's words, numbers that nobody can store, streams without end."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from structlog.testing import capture_logs

from contracts.errors import ProviderFailed
from contracts.keys import Caller
from contracts.records import Generation, decode
from runtime.database import Database
from runtime.log.local import LocalLog
from runtime.replicas.in_process import LocalSessionStore
from services.inference.provider.chat import Chats
from services.inference.provider.passing import PassedAnswer, Passing
from services.inference.provider.records import PassedCall
from services.inference.provider.wire import ProviderClient, events_of
from services.inference.recorder import Recorder
from services.inference.sessions.budgets import SessionBudgets
from services.inference.terms import read_terms
from services.provider import ProviderSettings
from tests.fakes import everything
from tests.unit.pipelines.episodes.bench import a_task
from tests.unit.services.inference.provider.conftest import KEY, Fronted
from tests.unit.services.serving import wait_until
from tests.worlds.servers.provider import MODEL, chat_answer, chat_chunks

ASKED: list[Any] = [{"role": "user", "content": "a secret wish"}]
SIGNALS = {"accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}}
ECHO = {"error": {"message": f"bad key {KEY}; you sent: a secret wish", "type": "theirs", "code": "x"}}


@pytest.mark.parametrize("status", [200, 401, 429])
def test_a_log_holds_neither_the_key_nor_a_prompt_that_a_provider_quotes(fronted: Fronted, status: int) -> None:
    fronted.provider.status, fronted.provider.answer = status, ECHO
    fronted.provider.events = [*chat_chunks("Su")[:2], ECHO]
    with capture_logs() as lines:
        assert fronted.send("chat/completions", {"messages": ASKED}).status_code >= 400
        assert fronted.send("chat/completions", {"messages": ASKED, "stream": True}).text
    said = str(lines)
    assert "theirs x" in said
    assert KEY not in said
    assert "secret wish" not in said


def test_a_cookie_that_came_with_ones_answer_is_not_sent_for_another(fronted: Fronted) -> None:
    fronted.provider.headers = {"set-cookie": "who=me; Path=/"}
    fronted.ask()
    fronted.ask()
    assert "cookie" not in fronted.provider.asked[-1][1]


def test_a_header_of_other_letters_is_passed_on(fronted: Fronted) -> None:
    headers = [(b"x-api-key", fronted.key.encode()), (b"anthropic-beta", "neu-für".encode("latin-1"))]
    asked = {"model": MODEL, "max_tokens": 5, "messages": ASKED}
    httpx.post(f"{fronted.url}/v1/messages", json=asked, headers=headers, timeout=10.0)
    assert fronted.provider.asked[-1][1]["anthropic-beta"] == "neu-für"


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 2_000_000_000},
        {"n": -1},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 2**70}}}]},
        {"messages": [{**ASKED[0], "x": -(2**70)}]},
    ],
)
def test_what_no_record_can_hold_is_refused_before_it_costs_anything(fronted: Fronted, changes: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError):
        fronted.ask(messages=changes.pop("messages", ASKED), **changes)
    assert fronted.provider.asked == []


@pytest.mark.parametrize("longest", [-1, 2**40])
def test_a_limit_that_only_the_provider_understands_is_passed_on_and_its_record_can_be_read(
    fronted: Fronted, longest: int
) -> None:
    fronted.ask(max_tokens=longest)
    assert fronted.sent["max_tokens"] == longest
    assert fronted.last()[0].sampling.max_tokens in {0, 2**31 - 1}


@pytest.mark.parametrize("index", [-1, 10**10])
def test_a_choice_in_an_impossible_place_is_no_answer(fronted: Fronted, index: int) -> None:
    fronted.provider.answer["choices"][0]["index"] = index
    with pytest.raises(openai.InternalServerError, match="another shape"):
        fronted.ask()
    assert fronted.logged() == []


def test_a_huge_number_in_an_answer_is_passed_on(fronted: Fronted) -> None:
    fronted.provider.answer = chat_answer("Sure.", extra=2**70)
    assert (
        json.loads(fronted.send("chat/completions", {"messages": ASKED}).text)["choices"][0]["message"]["extra"]
        == 2**70
    )


def test_a_client_that_leaves_before_the_end_has_spent_its_sessions_tokens(fronted: Fronted) -> None:
    fronted.provider.events = chat_chunks("table for four, " * 10, "more")
    fronted.provider.hold_after = 2
    fronted.provider.go.clear()
    headers = {"authorization": f"Bearer {fronted.key}"}
    made = httpx.post(f"{fronted.url}/v1/sessions", json={}, headers=headers).json()
    with (
        openai.OpenAI(base_url=made["base_url"], api_key=made["key"], max_retries=0) as agent,
        agent.chat.completions.create(model=MODEL, messages=ASKED, stream=True) as chunks,
    ):
        assert [next(chunks), next(chunks)]

    def spent() -> int:
        shown = httpx.get(f"{fronted.url}/v1/sessions/{made['id']}", headers=headers).json()
        return int(shown["used_tokens"])

    wait_until(spent)
    assert spent() == 40


async def test_a_stream_without_end_is_ended() -> None:
    async def endless() -> AsyncIterator[bytes]:
        comment = b":" + bytes(2**23) + b"\n"
        for _ in range(40):
            yield comment

    with pytest.raises(ProviderFailed, match="stream has more than"):
        async for _ in events_of(httpx.Response(200, content=endless())):
            pass


async def test_who_leaves_while_the_answer_is_recorded_leaves_its_record(tmp_path: Path, database: Database) -> None:
    log, task, caller = LocalLog(tmp_path), a_task(SIGNALS), Caller("k", "app", "t", frozenset())
    sent, provider = (
        Chats().read(json.dumps({"model": "demo", "messages": ASKED}).encode()),
        ProviderSettings(url="http://127.0.0.1:1", model=MODEL),
    )
    call = PassedCall(
        completion_id="chatcmpl-01900000-0000-7000-8000-000000000000",
        created_at=time.time(),
        policy="demo",
        caller=caller,
        terms=read_terms(sent.request, caller, None, "demo", tasks={task.name: task}),
        dialect=Chats(),
        sent=sent,
        attempt=None,
        headers={},
    )
    recorder, client = Recorder(log), ProviderClient(provider)
    shared = Passing(
        provider=provider,
        client=client,
        recorder=recorder,
        budgets=SessionBudgets(database),
        kept=LocalSessionStore(),
        seconds=1.0,
    )
    answer = PassedAnswer(shared, call)
    call.dialect.hear(chat_answer(), answer.told)
    leaving = asyncio.create_task(answer.record())
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    answer.abandon()
    await recorder.close()
    await client.close()
    [record] = everything(log, "generations")
    assert decode(Generation, record.value).finish_reason == "stop"
