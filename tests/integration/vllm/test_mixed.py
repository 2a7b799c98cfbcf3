"""Our engine and a vLLM server behind one endpoint: both take a version, and each answers what it can."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import openai
import pytest

from contracts.assignments import LIVE
from contracts.records import Generation, decode
from contracts.topics import GENERATIONS
from engines.vllm.settings import VllmSettings
from runtime.engine_key import ENGINE_KEY
from runtime.settings import write_settings
from tests.integration.vllm.world import START_SECONDS, vllm_python
from tests.unit.services.serving import wait_until
from tests.worlds.fleet import KEY, PATIENCE_SECONDS, POLICY, ReplicaFleet

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

OURS, VLLM = "ours", "theirs-1"
RATE, SECONDS = 5.0, 4.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaFleet]:
    python = vllm_python()
    if python is None:
        pytest.skip("vLLM is not here: `make vllm` makes its environment, MILLRACE_VLLM_PYTHON names another")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv(ENGINE_KEY, KEY)
        fleet = ReplicaFleet(tmp_path_factory.mktemp("mixed"), stack)
        settings = fleet.home("host", "near")
        # Started by hand with less than ours can do: no likeliest tokens.
        section = VllmSettings(
            python=python, slots=(LIVE,), name="theirs", region="near", arguments=("--max-logprobs", "1")
        )
        write_settings(settings, {"vllm": section})
        fleet.start("vllm", "host")
        fleet.start_engine(OURS, "near")
        wait_until(lambda: fleet.serve(OURS, VLLM), START_SECONDS)
        fleet.start_endpoint()
        yield fleet
        fleet.processes["vllm"].terminate()
        fleet.processes["vllm"].wait(PATIENCE_SECONDS)


def records(fleet: ReplicaFleet) -> dict[str, Generation]:
    """The generations in the log, by key."""
    log, found = fleet.homes["web"].event_log(), dict[str, Generation]()
    try:
        for partition, end in log.ends(GENERATIONS).items():
            for record in log.read(GENERATIONS, partition, 0, end):
                found[record.key] = decode(Generation, record.value)
    finally:
        log.close()
    return found


def test_a_mixed_fleet_serves_takes_a_version_and_names_what_it_cannot_do(fleet: ReplicaFleet) -> None:
    rows = fleet.rows()
    assert {row.kind for row in rows.values()} == {"millrace", "vllm"}
    assert rows[OURS].abilities - rows[VLLM].abilities == {"top_logprobs", "support"}
    assert rows[OURS].base == rows[VLLM].base

    version = fleet.publish()
    assert fleet.load(RATE, SECONDS, SECONDS / 3, lambda: fleet.assign(version)) == {"answered": int(RATE * SECONDS)}
    wait_until(lambda: fleet.serve(OURS, VLLM), PATIENCE_SECONDS)
    assert fleet.load(RATE, SECONDS, 0.0, lambda: None) == {"answered": int(RATE * SECONDS)}
    logged = records(fleet)
    made = [logged[key] for key in fleet.seen]
    assert {one.engine for one in made} == {rows[OURS].engine, rows[VLLM].engine}, (
        "both answered, each under its own name"
    )
    assert {span.version for one in made for span in one.spans} == {0, version}

    messages = [{"role": "user", "content": "A table for 2"}]
    with openai.OpenAI(base_url=f"{fleet.url}/v1", api_key=fleet.key, max_retries=0, timeout=60.0) as client:
        for _ in range(4):
            answer = client.chat.completions.create(
                model=POLICY, messages=messages, logprobs=True, top_logprobs=3, max_tokens=4  # type: ignore[arg-type]
            )  # fmt: skip
            logprobs = answer.choices[0].logprobs
            assert logprobs is not None
            assert logprobs.content is not None
            assert {len(one.top_logprobs) for one in logprobs.content} == {3}
        fleet.processes[OURS].terminate()
        fleet.processes[OURS].wait(PATIENCE_SECONDS)
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model=POLICY, messages=messages, logprobs=True, top_logprobs=3, max_tokens=4  # type: ignore[arg-type]
            )  # fmt: skip
        assert refused.value.param == "top_logprobs"
        assert "no engine here supports top_logprobs" in refused.value.message
        answer = client.chat.completions.create(model=POLICY, messages=messages, max_tokens=4)  # type: ignore[arg-type]
        assert answer.model_extra is not None
        assert answer.model_extra["policy_version"] == version
    wait_until(lambda: fleet.audit().balanced, PATIENCE_SECONDS)
