"""SGLang behind the endpoint, on a fake of the shapes of 0.5.23: what is asked, what is read, what is recorded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

from contracts.assignments import LIVE, move
from contracts.engines import EngineReplica, announce
from contracts.errors import EngineFailed, EngineRestarted, InvalidRequest
from contracts.records import unpack_ids
from contracts.sampling import Sampling, Span
from runtime.database import Database
from services.inference.app import create_app
from services.inference.engine.sglang import SglangReader, sglang_body
from services.inference.engine.wire import EngineRequest
from tests.unit.policy.test_vllm_engine import weights_of
from tests.unit.services.inference.conftest import Inference
from tests.unit.services.inference.world import FakeEngine, StubbornLog, make_base
from tests.unit.services.serving import make_home, make_key, serve, wait_until
from tests.unit.services.sglang.fake_sglang import END, FakeSglang
from weights.engines.held import VersionFile
from weights.engines.sglang import SglangServer
from weights.tensors import root_of, write_safetensors

REQUEST = EngineRequest("demo", [5, 6, 7], Sampling(temperature=0.7, max_tokens=9), "r-1")


def event(ids: list[int], count: int, finish: dict[str, Any] | None = None, **more: Any) -> bytes:
    meta = {
        "completion_tokens": count,
        "finish_reason": finish,
        "output_token_logprobs": [[-0.5, i, None] for i in ids],
    }
    return msgspec.json.encode({"text": "", "output_ids": ids, "meta_info": meta | more})


class TestWire:
    def test_what_is_asked(self) -> None:
        sampling = Sampling(temperature=0.7, max_tokens=9, top_k=4, logit_bias={8: -1.0}, presence_penalty=0.5)
        asked = msgspec.json.decode(sglang_body(REQUEST._replace(sampling=sampling, num_top=3), [70, 71]))
        assert asked["input_ids"] == [5, 6, 7, 70, 71]
        assert asked["rid"] != "r-1", "SGLang refuses an id that is in use"
        assert (asked["stream"], asked["return_logprob"], asked["top_logprobs_num"]) == (True, True, 3)
        assert asked["sampling_params"] == {
            "temperature": 0.7, "top_p": 1.0, "top_k": 4, "min_p": 0.0, "repetition_penalty": 1.0, "frequency_penalty": 0.0,
            "presence_penalty": 0.5, "max_new_tokens": 7, "skip_special_tokens": False, "logit_bias": {"8": -1.0},
        }  # fmt: skip
        assert msgspec.json.decode(sglang_body(REQUEST, []))["sampling_params"]["top_k"] == -1

    @pytest.mark.parametrize("incremental", [True, False])
    def test_tokens_are_read_once_in_either_mode_of_streaming(self, *, incremental: bool) -> None:
        read = SglangReader(REQUEST, 2)
        first = read(event([70], 1))
        second = read(event([71, 72] if incremental else [70, 71, 72], 3))
        versions = [{"version": "v4", "start": 0, "end": 1}, {"version": "v5", "start": 1, "end": 3}]
        last = read(
            event([] if incremental else [70, 71, 72], 3, {"type": "length", "length": 3}, weight_versions=versions)
        )
        assert [token.id for piece in (first, second, last) for token in piece.tokens] == [70, 71, 72]
        assert (first.finish_reason, last.finish_reason) == (None, "length")
        assert (first.spans, last.spans) == ([], [Span(2, 4), Span(3, 5)])

    def test_it_is_told_whose_prompt_it_is_and_tells_what_it_had(self) -> None:
        assert "extra_key" not in msgspec.json.decode(sglang_body(REQUEST, []))
        request = REQUEST._replace(cache_scope="one").salted(3)
        assert msgspec.json.decode(sglang_body(request, []))["extra_key"] == request.cache_salt
        assert SglangReader(REQUEST, 0)(event([70], 1)).num_cached is None
        meta = {"completion_tokens": 1, "output_token_logprobs": [[-0.5, 70, None]], "cached_tokens": 2}
        assert SglangReader(REQUEST, 0)(msgspec.json.encode({"output_ids": [70], "meta_info": meta})).num_cached == 2

    def test_a_label_of_nobodys_version_gives_no_spans(self) -> None:
        for label in ("default", "v1-to-v2"):
            told = event([70], 1, {"type": "stop"}, weight_versions=[{"version": label, "start": 0, "end": 1}])
            assert SglangReader(REQUEST, 0)(told).spans == []

    @pytest.mark.parametrize(
        "broken",
        [
            b"{}",
            b'{"output_ids": 3}',
            event([70], 1, output_token_logprobs=[]),
            event([70], 1, output_token_logprobs=[[-0.5, 71, None]]),
            event([70], 1, output_token_logprobs=[[0.5, 70, None]]),
            event([70], 2),
            event([70], 1, {"type": "stop"}, weight_versions=[{"version": "v1", "start": 1}]),
            event([70], 1, {"type": "no such"}),
        ],
    )
    def test_an_event_that_cannot_be_used_is_refused(self, broken: bytes) -> None:
        with pytest.raises(EngineFailed):
            SglangReader(REQUEST, 0)(broken)

    def test_aborts_say_whose_fault_it_was(self) -> None:
        def aborted(**more: object) -> bytes:
            return event([], 0, {"type": "abort", "message": "Aborted", **more})

        with pytest.raises(EngineRestarted):
            SglangReader(REQUEST, 0)(aborted(status_code=None))
        with pytest.raises(InvalidRequest):
            SglangReader(REQUEST, 0)(aborted(status_code=400))
        with pytest.raises(EngineFailed):
            SglangReader(REQUEST, 0)(aborted(status_code=503))
        with pytest.raises(InvalidRequest):
            SglangReader(REQUEST, 0)(
                b'{"error": {"message": "too long", "code": 400, "type": "invalid_request_error"}}'
            )


class Endpoint(Inference):
    """The endpoint with one SGLang server."""

    sglang: FakeSglang
    sglang_url: str
    tell: Callable[[int], None]
    """Announce the version that it serves."""


@pytest.fixture(params=[True, False], ids=["incremental", "cumulative"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path, database: Database) -> Iterator[Endpoint]:
    make_base(tmp_path / "base")
    fake = FakeSglang(tmp_path / "base")
    fake.incremental, fake.weight_version = request.param, "v3"
    log, keys = StubbornLog(tmp_path / "log"), (make_key(database), make_key(database, "operator"))
    app = create_app(make_home(tmp_path), event_log=log, patience_seconds=3.0)
    with database.transaction() as connection:
        move(connection, policy="demo", arm=LIVE, version=3, expected_epoch=0, writer="test", reason="test", share=1.0)
    with serve(fake.app()) as engine_url, serve(app) as url:
        row = EngineReplica(
            "sglang-1", "demo", engine_url, "sglang", "local", "serving", {"live": 3},
            frozenset({"spans", "logprobs", "top_logprobs", "penalties"}), "1", "sglang", "bfloat16", 0.0,
        )  # fmt: skip

        def tell(version: int) -> None:
            with database.transaction() as connection:
                announce(connection, row._replace(slots={"live": version}))

        tell(3)
        world = Endpoint(FakeEngine(""), log, url, *keys)
        world.sglang, world.sglang_url, world.tell = fake, engine_url, tell
        wait_until(lambda: bool(world.client.models.list()) and "sglang-1" in app.state.engines._members)
        yield world
        world.client.close()


CALLER: Any = {"metadata": {"task": "private"}, "store": True, "temperature": 1.0}
"""A task that leaves sampling to the caller."""
MESSAGES: Any = [{"role": "user", "content": "hi"}]


def test_an_answer_with_its_log_probs_and_versions(endpoint: Endpoint) -> None:
    answer = endpoint.client.chat.completions.create(model="demo", messages=MESSAGES, logprobs=True, top_logprobs=2)
    assert answer.choices[0].finish_reason == "stop"
    (record,) = endpoint.logged()
    assert unpack_ids(record.open().completion_ids) == [70, 71, 72, END]
    assert record.spans == (Span(0, 3),)
    assert (record.engine, record.dtype) == ("sglang", "bfloat16")
    assert not record.sampling.raw_logprobs
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert [len(token.top_logprobs) for token in answer.choices[0].logprobs.content][:3] == [2, 2, 2]


def test_a_filtered_answer_says_that_its_log_probs_are_of_more_tokens(endpoint: Endpoint) -> None:
    endpoint.client.chat.completions.create(model="demo", messages=MESSAGES, top_p=0.5, **CALLER)
    (record,) = endpoint.logged()
    assert record.sampling.raw_logprobs
    assert record.sampling.off_support == "raw_logprobs"


def test_what_it_cannot_do_is_refused_by_name(endpoint: Endpoint) -> None:
    with pytest.raises(openai.BadRequestError, match="no engine here supports response_format"):
        endpoint.client.chat.completions.create(
            model="demo", messages=MESSAGES, response_format={"type": "json_object"}
        )
    with pytest.raises(openai.BadRequestError, match="repetition_penalty of this server"):
        endpoint.client.chat.completions.create(
            model="demo", messages=MESSAGES, extra_body={"repetition_penalty": 1.5}, **CALLER
        )


def test_a_request_in_flight_goes_on_over_a_swap_and_each_token_has_its_version(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    fake, answers = endpoint.sglang, list[Any]()
    fake.steps = asyncio.Queue()
    path = tmp_path / "slot" / "v000004-x.safetensors"
    path.parent.mkdir()
    write_safetensors(path, weights_of(4))
    target = VersionFile(4, root_of(weights_of(4)), path)
    asking = threading.Thread(
        target=lambda: answers.append(endpoint.client.chat.completions.create(model="demo", messages=MESSAGES))
    )
    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=endpoint.sglang_url, limits=limits) as client:
        driver = SglangServer(client, tmp_path / "base")
        asking.start()
        for _ in range(2):
            client.post("/step")
        wait_until(lambda: fake._num_made == 2)
        driver.stage(target, None)
        driver.push(target, None)
        endpoint.tell(4)
        for _ in range(2):
            client.post("/step")
    asking.join(60)
    assert answers[0].choices[0].finish_reason == "stop"
    assert endpoint.logged()[0].spans == (Span(0, 3), Span(2, 4))
