"""Our own endpoint as the provider: every dialect goes through both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from contracts.ids import completion_id_of
from contracts.records import Generation, decode
from contracts.topics import GENERATIONS
from runtime.database import Database
from runtime.settings import write_settings
from services.inference.app import create_app
from services.provider import ProviderSettings, chosen
from tests.unit.services.inference.conftest import Inference, text_of
from tests.unit.services.inference.world import StubbornLog
from tests.unit.services.serving import make_home, make_key, serve

TEXT = "Tisch für 4: {ok}"


def test_our_own_endpoint_is_a_provider_too(
    inference: Inference, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, log = (
        make_home(tmp_path).model_copy(update={"base": "", "policy": "front"}),
        StubbornLog(tmp_path / "log"),
    )
    monkeypatch.setenv("MILLRACE_PROVIDER_KEY", inference.key)
    write_settings(settings, {"provider": ProviderSettings.model_validate(chosen(f"{inference.url}/v1", "demo"))})
    key = make_key(database)
    with serve(create_app(settings, event_log=log)) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
            said: Any = [{"role": "user", "content": "table for 4"}]
            plain = client.chat.completions.create(model="front", messages=said)
            chunks = list(client.chat.completions.create(model="front", messages=said, stream=True))
            response = client.responses.create(model="front", input="table for 4")
        asked = {"model": "front", "max_tokens": 30, "messages": said}
        message = httpx.post(f"{url}/v1/messages", json=asked, headers={"x-api-key": key}).json()
    assert {text_of(plain), text_of(chunks), response.output_text, message["content"][0]["text"]} == {TEXT}
    found = [record for place in range(log.num_partitions) for record in log.read(GENERATIONS, place, 0, 100)]
    logged = [decode(Generation, record.value) for record in found]
    answers = {plain.id, chunks[0].id, completion_id_of(response.id), message["id"]}
    assert {record.completion_id for record in logged} == answers
    theirs = {record.completion_id for record in inference.logged()}
    assert len(theirs) == len(answers)
    assert not theirs & answers, "each endpoint has ids of its own"
    counts = {
        (record.provided.prompt_tokens, record.provided.completion_tokens) for record in logged if record.provided
    }
    assert len(counts) == 1
