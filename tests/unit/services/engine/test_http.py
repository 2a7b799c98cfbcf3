"""The engine's API, over real HTTP on loopback."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from contracts.assignments import Assignment
from contracts.errors import Unavailable
from runtime.engine_key import authorization
from services.engine.__main__ import check_ready
from services.engine.app import make_app
from services.engine.engine import ENGINE, Engine
from services.engine.follower import Follower
from services.engine.settings import EngineSettings
from tests.worlds.engines.memory_store import POLICY, StoreInMemory
from tests.worlds.engines.policies import policy_engine, policy_store
from tests.worlds.engines.tiny import assigned, logprobs_of, make_engine, reference, rounding, until

PROMPT = [5, 9, 33, 12]
KEY = "the-key-of-this-test"
JSON = {"content-type": "application/json"}
ASSIGNED: dict[str, Assignment] = {
    "live": assigned(1),
    "candidate": assigned(None),
    "training": assigned(3),
}


class Served:
    """An engine behind uvicorn in a thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        app = make_app(self.engine, Follower(self.engine, lambda: ASSIGNED, on_exit=lambda: None), KEY)
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, headers=authorization(KEY))

    def start(self) -> None:
        self._thread.start()
        while httpx.get(f"{self.url}/health").status_code != httpx.codes.OK:
            time.sleep(0.02)

    def stop(self) -> None:
        self.client.close()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


@pytest.fixture(scope="module")
def served(store: StoreInMemory) -> Iterator[Served]:
    served = Served(make_engine(store))
    served.start()
    yield served
    served.stop()


def body(**fields: Any) -> dict[str, Any]:
    head: dict[str, Any] = {
        name: fields.pop(name) for name in ("model", "token_ids", "stream", "request_id") if name in fields
    }
    params = {"max_tokens": 10, "ignore_eos": True, **fields}
    return {"model": POLICY, "token_ids": PROMPT, "sampling_params": params, **head}


async def post_and_go_on(served: Served, content: dict[str, Any]) -> asyncio.StreamWriter:
    """Send a request and do not wait for its answer."""
    sent = json.dumps(content).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        b"POST /inference/v1/generate HTTP/1.1\r\nhost: engine\r\nauthorization: Bearer %b\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % (KEY.encode(), len(sent)) + sent
    )
    return writer


def logprobs_in(choice: Any) -> list[float]:
    content = choice["logprobs"]["content"]
    assert [entry["token_id"] for entry in content] == choice["token_ids"]
    return [entry["logprob"] for entry in content]


def test_a_completion_carries_its_provenance(served: Served, store: StoreInMemory) -> None:
    answer = served.client.post("/inference/v1/generate", json=body(temperature=0.7, request_id="mine")).json()
    (choice,) = answer["choices"]
    logprobs = logprobs_of(reference(store.weights[1]), PROMPT, choice["token_ids"], 0.7)
    assert logprobs_in(choice) == pytest.approx(logprobs, abs=rounding(0.7))
    assert choice["finish_reason"] == "length"
    assert answer["request_id"] == "mine"
    assert choice["weight_versions"] == [{"version": "v1", "start": 0, "end": 10}]
    cached = {"prompt_tokens_details": {"cached_tokens": 0}}
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 10, "total_tokens": 14, **cached}
    assert answer["system"] == {"engine": ENGINE, "dtype": "float32"}
    assert 0 < answer["timings"]["first_token_seconds"] <= answer["timings"]["seconds"]


def test_a_stream_says_the_same_in_parts(served: Served, store: StoreInMemory) -> None:
    events: list[str] = []
    with served.client.stream("POST", "/inference/v1/generate", json=body(stream=True)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events.extend(line.removeprefix("data: ") for line in response.iter_lines() if line)
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    choices = [chunk["choices"][0] for chunk in chunks]
    token_ids = [token for choice in choices for token in choice["token_ids"]]
    logprobs = [value for choice in choices for value in logprobs_in(choice)]
    assert len(chunks) == len(token_ids) == 10
    assert logprobs == pytest.approx(logprobs_of(reference(store.weights[1]), PROMPT, token_ids), abs=rounding())
    assert [choice["finish_reason"] for choice in choices] == [None] * 9 + ["length"]
    told = [choice.get("weight_versions") for choice in choices]
    assert told[0] == [{"version": "v1", "start": 0, "end": 1}]
    assert told[1:-1] == [None] * 8
    assert told[-1] == [{"version": "v1", "start": 0, "end": 10}], "the last chunk names all, as vLLM does"
    assert chunks[-1]["system"]["engine"] == ENGINE


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_cancels_its_request(served: Served, stream: bool) -> None:
    live = served.engine.arms["live"]
    writer = await post_and_go_on(served, body(max_tokens=500, stream=stream))
    await until(lambda: live.num_in_flight == 1)
    (active,) = live._active.values()
    writer.close()
    await writer.wait_closed()
    await until(lambda: live.num_in_flight == 0)
    assert not active.finished, "it ran to its end"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_the_compilation_of_its_grammar(stream: bool) -> None:
    settings = EngineSettings(max_batch_tokens=256, cache_tokens=8192, grammar_seconds=600.0)
    served = Served(policy_engine("llama", policy_store("llama", 1), settings=settings))
    served.start()
    slow = {"json": {"type": "integer", "multipleOf": 999983}}
    writer = await post_and_go_on(served, body(stream=stream, structured_outputs=slow))
    grammars = served.engine._grammars
    assert grammars is not None
    await until(lambda: len(grammars._running) == 1)
    writer.close()
    await writer.wait_closed()
    await until(lambda: not grammars._running)
    assert served.engine.arms["live"].num_in_flight == 0
    answer = served.client.post("/inference/v1/generate", json=body(structured_outputs={"json_object": True}))
    assert answer.status_code == httpx.codes.OK
    served.stop()


def test_mistakes_are_openai_errors(served: Served) -> None:
    def post(path: str, content: Any) -> tuple[int, str, str | None]:
        raw = content if isinstance(content, bytes) else json.dumps(content)
        response = served.client.post(path, content=raw, headers=JSON)
        error = response.json()["error"]
        return response.status_code, error["code"], error["param"]

    generate = "/inference/v1/generate"
    assert post(generate, b"{") == (400, "invalid_request", None)
    assert post(generate, body(temperature=-1)) == (400, "invalid_request", "temperature")
    assert post(generate, body(token_ids=[99])) == (400, "invalid_request", "token_ids")
    assert post(generate, body(max_tokens=509)) == (400, "context_length_exceeded", "max_tokens")
    assert post(generate, body(model="other")) == (404, "model_not_found", "model")
    assert post(generate, body(model=f"{POLICY}@v9")) == (404, "version_not_resident", "model")
    assert post("/pause?mode=abort", {}) == (400, "invalid_request", "mode")
    assert post("/update_weights", {}) == (400, "invalid_request", "update_info")
    assert post("/update_weights", {"update_info": {"arm": "side", "version": 1}}) == (400, "invalid_request", "arm")
    assert post("/update_weights", {"update_info": {"arm": "candidate", "version": 9}}) == (404, "not_found", None)
    assert served.client.get("/state").json()["restarts"] == 0


def test_a_candidate_comes_beside_live(served: Served) -> None:
    update = {"update_info": {"arm": "candidate", "version": 2}}
    assert served.client.post("/update_weights", json=update).json() == {
        "arm": "candidate", "version": 2, "swap": None,
    }  # fmt: skip
    update["update_info"]["version"] = 3
    swap = served.client.post("/update_weights", json=update).json()["swap"]
    assert swap["version"] == 3
    assert served.client.get("/swaps").json()["swaps"][-1] == swap
    models = [model["id"] for model in served.client.get("/v1/models").json()["data"]]
    assert models == [POLICY, f"{POLICY}@v1", f"{POLICY}@v3"]
    health = served.client.get("/state").json()
    assert health["versions"] == {"live": 1, "candidate": 3}
    assert (health["status"], health["dtype"], health["problems"]) == ("serving", "float32", {})
    pinned = served.client.post("/inference/v1/generate", json=body(model=f"{POLICY}@v3")).json()
    assert pinned["choices"][0]["weight_versions"][0]["version"] == "v3"
    assert served.client.get("/version").json() == {"version": ENGINE}


def test_pause_and_resume(served: Served) -> None:
    assert served.client.get("/is_paused").json() == {"is_paused": False}
    served.client.post("/pause?mode=keep").raise_for_status()
    assert served.client.get("/is_paused").json() == {"is_paused": True}
    for path, says in (("/health", "not serving"), ("/state", "paused")):
        answer = served.client.get(path)
        assert (answer.status_code, answer.json()["status"]) == (503, says)
    with pytest.raises(httpx.ReadTimeout):
        served.client.post("/inference/v1/generate", json=body(), timeout=0.2)
    with pytest.raises(Unavailable, match="the engine is paused"):
        check_ready(served.engine)
    served.client.post("/resume").raise_for_status()
    check_ready(served.engine)
    assert httpx.get(f"{served.url}/health").json() == {"status": "serving"}, "anybody may ask, and hears no more"
    assert served.client.post("/inference/v1/generate", json=body()).status_code == httpx.codes.OK


def test_the_follower_follows_while_it_serves(served: Served) -> None:
    def health() -> Any:
        return served.client.get("/state").json()

    ASSIGNED["live"] = assigned(9)
    while not health()["problems"]:
        time.sleep(0.05)
    assert health()["problems"]["live"]["code"] == "not_found"
    assert health()["versions"]["live"] == 1
    ASSIGNED["live"] = assigned(2)
    while health()["problems"]:
        time.sleep(0.05)
    assert health()["versions"]["live"] == 2
    assert health()["status"] == "serving"
