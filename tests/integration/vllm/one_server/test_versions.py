"""Versions on a real vLLM: bits, spans, refusals, kills. The tests share one server, and each begins by assigning what it needs."""

from __future__ import annotations

import os
import signal
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from contracts.assignments import LIVE
from engines.following.driver import VersionFile
from engines.vllm.deliver import VllmServer
from policy.load import load_model
from tests.integration.vllm.world import NUM_VERSIONS, PRODUCT, Answer, VllmWorld, collect
from tests.tolerances import network_tolerance
from weights.tensors import Tensors, root_of, write_safetensors

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
PROMPT = [int(word) for word in np.random.default_rng(7).integers(3, 700, 24)]


def forward(tensors: Tensors, answer: Answer) -> list[float]:
    """The log-probs of an answer by transformers' own forward pass over published bits, float32."""
    model = load_model(str(PRODUCT / "base"), device="cpu", dtype=torch.float32)
    held = {
        name: torch.from_numpy(tensor.data.copy()).view(torch.bfloat16).reshape(tensor.shape).float()
        for name, tensor in tensors.items()
    }
    assert not model.load_state_dict(held, strict=False).unexpected_keys
    ids = torch.tensor([[*PROMPT, *answer.tokens]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids).logits[0].float(), -1)
    at = len(PROMPT) - 1
    return [float(logprobs[at + place, token]) for place, token in enumerate(answer.tokens)]


def check_bits(world: VllmWorld, version: int) -> Answer:
    """The server computes with the published bits, up to the order of float32 sums."""
    answer = world.answer(PROMPT)
    config = AutoModelForCausalLM.from_pretrained(PRODUCT / "base").config
    expected = forward(world.versions[version], answer)
    assert answer.logprobs == pytest.approx(expected, abs=network_tolerance(config))
    assert {name for name, _, _ in answer.spans} == {f"v{version}"}
    return answer


def check_held(world: VllmWorld, version: int) -> None:
    """What every layer multiplies by is the published weight, also the tied head; another version's is not."""
    with world.client() as client:
        driver = VllmServer(client)
        found = []
        for number in (version, version - 1):
            path = world.settings.home / f"compared-{number}.safetensors"
            write_safetensors(path, world.versions[number])
            found.append(driver.compare(VersionFile(number, root_of(world.versions[number]), path)))
    assert found[0].is_exact, found[0]
    assert not found[1].unknown
    assert "lm_head.weight" in found[1].different
    assert found[1].num_equal == 0


def test_ten_versions_with_a_request_in_flight(world: VllmWorld) -> None:
    world.bring(0)
    before = check_bits(world, 0)
    made: list[Answer] = []
    flying = threading.Thread(target=lambda: made.append(collect(world.events(PROMPT, max_tokens=450, seed=5))))
    flying.start()
    for version in range(1, NUM_VERSIONS + 1):
        world.bring(version)
    flying.join(300)
    (answer,) = made
    assert (len(answer.tokens), len(answer.logprobs), answer.finish_reason) == (450, 450, "length")
    assert len(answer.spans) > 1, "it was in flight during a swap"
    assert answer.spans[0][1] == 0
    assert answer.spans[-1][2] == 450
    assert all(left[2] == right[1] for left, right in pairwise(answer.spans)), "no token is without its version"
    assert [int(name[1:]) for name, _, _ in answer.spans] == sorted(int(name[1:]) for name, _, _ in answer.spans)
    after = check_bits(world, NUM_VERSIONS)
    check_held(world, NUM_VERSIONS)
    assert after.logprobs != before.logprobs
    world.bring(0)
    assert world.answer(PROMPT) == before, "bit for bit, after ten versions and back"


def test_prefixes_of_another_version_are_not_used(world: VllmWorld) -> None:
    long = PROMPT * 8
    world.bring(3)
    world.answer(long)
    world.bring(4)
    again = world.answer(long)
    world.bring(3)
    world.bring(4)
    assert world.answer(long).logprobs == again.logprobs


def test_other_weights_under_the_number_are_refused_and_the_old_version_serves(world: VllmWorld) -> None:
    world.bring(2)
    with world.database.transaction() as connection:
        from contracts.tables import assignment  # noqa: PLC0415 only this test writes past the checks

        connection.execute(assignment.update().where(assignment.c.arm == LIVE).values(version=5, root="0" * 64))
    with pytest.raises(AssertionError, match="the row stayed"):
        world.wait_for(lambda row: row.slots == {LIVE: 5}, seconds=2)
    check_bits(world, 2)
    with world.database.transaction() as connection:
        root = world.store.manifest("reservations", 2).target_root
        connection.execute(assignment.update().where(assignment.c.arm == LIVE).values(version=2, root=root))


def test_a_follower_that_is_killed_finds_its_server_again(world: VllmWorld) -> None:
    world.bring(1)
    process = world.server()["process"]
    events = world.events(PROMPT, max_tokens=200, seed=9)
    first = [next(events)]
    world.kill()
    answer = collect(iter([*first, *events]))
    assert len(answer.tokens) == 200, "the server goes on without its follower"
    world.start()
    world.bring(6)
    assert world.server()["process"] == process
    check_bits(world, 6)


def test_a_swap_whose_driver_was_killed_in_the_middle_is_healed(world: VllmWorld) -> None:
    world.bring(1)
    events = world.events(PROMPT, max_tokens=300, seed=9)
    first = [next(events)]
    world.kill()
    with world.client() as client:
        path = world.settings.home / "damaged.safetensors"
        _break_off(client, world, path)
        assert client.get("/weight_info").json() == {"weight_version": "v1-to-v7"}
        world.start()
        world.bring(7)
    answer = collect(iter([*first, *events]))
    assert len(answer.tokens) == 300
    assert [name for name, _, _ in answer.spans] == ["v1", "v7"], "no token is of the mixture"
    check_bits(world, 7)


def _break_off(client: Any, world: VllmWorld, path: Any) -> None:
    """Half of an update, as of a driver that was killed: begun, named, and some layers loaded."""
    tensors = {name: tensor for name, tensor in world.versions[7].items() if "layers.2" not in name}
    tensors["not.a.parameter"] = world.versions[7]["model.norm.weight"]
    write_safetensors(path, tensors)
    driver = VllmServer(client)
    driver.stage(VersionFile(7, root_of(tensors), path), None)
    client.post("/pause", params={"mode": "keep"}).raise_for_status()
    client.post("/start_weight_update").raise_for_status()
    client.post("/update_weight_version", json={"new_version": "v1-to-v7"}).raise_for_status()
    body = {"update_info": {"version": 7, "root": root_of(tensors)}}
    assert client.post("/update_weights", json=body).status_code == 500


def test_a_server_that_is_killed_comes_back_with_its_version(world: VllmWorld) -> None:
    row = world.bring(8)
    os.kill(world.server()["process"], signal.SIGKILL)
    world.wait_for(lambda now: now.status == "restarting" and now.slots == {LIVE: None})
    back = world.wait_for(lambda now: now.status == "serving" and now.slots == {LIVE: 8})
    assert back.instance != row.instance
    check_bits(world, 8)
