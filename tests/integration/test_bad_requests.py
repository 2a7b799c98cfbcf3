"""Bad requests against the started product: each gets status, code, message and field; nothing is lost and nothing dies."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest

from commands import supervisor as supervisors
from commands.audit import audit
from commands.home import Home, prepare_home
from commands.up import listen, new_settings
from contracts.ids import sample_key
from examples.demo.command import PRODUCT
from tests.in_memory import folder_in_memory
from tests.supervised import supervised
from tests.worlds.bad_requests import BadRequest, bad_requests

pytestmark = pytest.mark.slow
MODEL = "reservations"


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    with folder_in_memory() as folder:
        yield from served(folder)


def served(folder: Path) -> Iterator[Home]:
    sockets = listen(0)
    settings = new_settings(
        folder, sockets, name=MODEL, base=PRODUCT / "base", tasks=[PRODUCT / "task.toml"], device="cpu"
    )
    settings = settings.model_copy(update={"requests_per_minute": 0})
    ready = prepare_home(settings, {})
    # Nothing of this reaches training or release, which would load torch once more.
    with patch.object(supervisors, "WORKERS", ("episodes", "rewards")), supervised(ready, sockets) as supervisor:
        yield ready
        assert {child.restarts for child in supervisor.children.values()} == {0}, "a process died"


def test_every_bad_request_is_refused_by_name_and_the_ledger_stays_balanced(home: Home) -> None:
    url = home.settings.web_url
    document = httpx.get(f"{url}/openapi.json").raise_for_status().json()
    seed = random.SystemRandom().randrange(10**6)
    cases, seen, wrong = list(bad_requests(MODEL, document, seed)), [], []
    assert len(cases) > 500
    headers = {"authorization": f"Bearer {home.app_key}", "content-type": "application/json"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        for case in cases:
            answer = client.post(case.path, content=case.body)
            if problem := _problem(case, answer):
                wrong.append(f"{case.path} {case.name}: {problem}")
            if answer.status_code == httpx.codes.OK:
                seen += _keys_of(answer)
        assert wrong == [], seed
        stored = client.get("/v1/chat/completions", params={"limit": "-1"})
        assert (stored.status_code, stored.json()["error"]["param"]) == (400, "limit")
        good = client.post("/v1/chat/completions", content=_good())
        assert good.is_success, good.text
        seen += _keys_of(good)
    assert httpx.get(f"{url}/ready").is_success
    database, log = home.settings.database(), home.settings.event_log()
    result = audit(database, log, [{"kind": "generation", "key": key} for key in seen])
    database.close()
    log.close()
    assert result.problems == ()
    assert not result.in_doubt


def _good() -> bytes:
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "A table for four."}]}).encode()


def _keys_of(answer: httpx.Response) -> list[str]:
    if "request-id" in answer.headers:  # Anthropic's
        return [sample_key(answer.headers["request-id"], 0)]
    if not answer.headers.get("x-request-id", "").startswith("chatcmpl-"):
        return []  # tokens alone
    if '"object":"response"' in answer.text:
        return [sample_key(answer.headers["x-request-id"], 0)]
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        found: Any = {(event["id"], choice["index"]) for event in events for choice in event["choices"]}
        return sorted(sample_key(*key) for key in found)
    body = answer.json()
    return [sample_key(body["id"], choice["index"]) for choice in body["choices"]]


def _problem(case: BadRequest, answer: httpx.Response) -> str:
    if answer.status_code == httpx.codes.OK:
        return "it was answered" if case.is_refused else ""
    shown = f"{answer.status_code} {answer.text[:300]}"
    if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        return shown
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError):
        return f"not an error object: {shown}"
    if set(error) - {"details"} != {"message", "type", "param", "code"} or not error["message"] or not error["code"]:
        return f"an error object with parts missing: {shown}"
    return ""
