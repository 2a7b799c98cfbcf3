"""Arms as adapters on a real vLLM: one server for the base and two versions, each under its name."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import torch

from contracts.assignments import CANARY, CANDIDATE, LIVE, SLOTS
from contracts.engines import EngineReplica
from contracts.sampling import Sampling
from engines.vllm.adapter_server import AdapterServer
from engines.vllm.kind import vllm_body, vllm_reader
from engines.wire import EngineRequest
from pipelines.training.learning.adapter_model import AdapterModel
from pipelines.training.settings import AdapterSettings, TrainingSettings
from policy.adapter import AdapterBits
from policy.load import load_model
from runtime.settings import write_settings
from tests.integration.vllm.world import POLICY, PRODUCT, VllmWorld, collect, vllm_python
from tests.tolerances import network_tolerance
from weights.adapters import CONFIG
from weights.probe import probe_prompts, write_probe
from weights.publish import publish_version
from weights.tensors import Tensor, Tensors
from weights.versions.keys import signer_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
PROMPT = [int(word) for word in np.random.default_rng(7).integers(3, 700, 24)]
RANK = 8


class AdapterWorld(VllmWorld):
    """A home whose policy is trained by an adapter, with four versions; the last has the trainer's answers with the first."""

    def _publish(self) -> None:
        trained = TrainingSettings(adapter=AdapterSettings(rank=RANK))
        write_settings(self.settings, {"training": trained})
        trainee = AdapterModel(load_model(str(PRODUCT / "base"), device="cpu", dtype=torch.float32), trained)
        self.model, self.adapter, signer = trainee.model, trainee.adapter, signer_of(self.settings)
        for number in (1, 2, 3, 4):
            self.versions.append(self._drawn(number))
            manifest = publish_version(
                self.store, policy=POLICY, run=self.settings.run, version=number, parent=number - 1,
                base=self.versions[-2] if number > 1 else {}, target=self.versions[-1], step=number, epoch=0, num_samples=1,
                created_at=0.0, signer=signer,
            )  # fmt: skip
            answers = trainee.probe_answers(self.versions[number if number < 4 else 1])
            answers = msgspec.structs.replace(answers, root=manifest.target_root)
            write_probe(self.store, POLICY, answers, signer)

    def _drawn(self, number: int) -> Tensors:
        generator = torch.Generator().manual_seed(number)
        weights = {
            name: (
                torch.randn(held.shape, generator=generator) * 0.02 if "lora_B" in name else held.detach()
            ).bfloat16()
            for name, held in self.adapter.named_parameters()
        }
        return dict(AdapterBits(self.adapter, weights=weights).items())

    def logprobs(self, version: int, tokens: list[int]) -> list[float]:
        """Of an answer to the prompt, by our own model with the published bits, in float32."""
        for name, held in self.adapter.named_parameters():
            held.data = torch.zeros_like(held) if version == 0 else as_float(self.versions[version][name])
        with torch.no_grad():
            logits = self.model(torch.tensor([[*PROMPT, *tokens]])).logits[0].float()
        found = torch.log_softmax(logits, -1)[len(PROMPT) - 1 : -1]
        return [float(found[place, token]) for place, token in enumerate(tokens)]

    def bring_arms(self, **arms: int) -> EngineReplica:
        """Assign, and wait for the row."""
        for arm, version in arms.items():
            self.assign(version, arm=arm)
        return self.wait_for(lambda row: row.status == "serving" and arms.items() <= row.slots.items())


def as_float(tensor: Tensor) -> torch.Tensor:
    return torch.from_numpy(tensor.data.copy()).view(torch.bfloat16).reshape(tensor.shape).float()


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdapterWorld]:
    python = vllm_python()
    if python is None:
        pytest.skip("vLLM is not here: `make vllm` makes its environment, MILLRACE_VLLM_PYTHON names another")
    made = AdapterWorld(tmp_path_factory.mktemp("vllm") / "home", python)
    try:
        yield made
    finally:
        made.close()


def answered(world: AdapterWorld, version: int) -> tuple[list[int], list[float], list[tuple[int, int]]]:
    """Tokens, log-probs and spans, with the request that inference makes and the reader that it has."""
    sampling = Sampling(temperature=1.0, max_tokens=24, seed=1)
    request = EngineRequest(POLICY, PROMPT, sampling, f"t-{version}", adapter=version)
    read, pieces = vllm_reader(request, 0), []
    with world.client() as client:
        headers = {"content-type": "application/json"}
        answer = client.post("/inference/v1/generate", content=vllm_body(request), headers=headers)
    assert answer.status_code == 200, answer.text
    pieces = [read(line[6:].encode()) for line in answer.text.splitlines() if line.startswith("data: {")]
    tokens = [token for piece in pieces for token in piece.tokens]
    spans = {(span.start, span.version) for piece in pieces for span in piece.spans}
    return [token.id for token in tokens], [token.logprob for token in tokens], sorted(spans)


def test_one_server_answers_for_the_base_and_for_each_adapter(arms: AdapterWorld) -> None:
    """The log-probs of each name are those of our own model with that version's bits."""
    row = arms.bring_arms(live=0, candidate=1, canary=2)
    assert set(row.slots) == set(SLOTS)
    assert "adapters" in row.abilities
    tolerance, made = network_tolerance(arms.model.config), {}
    for version in (0, 1, 2):
        tokens, found, spans = answered(arms, version)
        assert spans == [(0, version)]
        expected = arms.logprobs(version, tokens)
        assert found == pytest.approx(expected, abs=tolerance)
        made[version] = found
    assert len({tuple(found) for found in made.values()}) == 3, "each name answers as another version"


def test_a_version_is_loaded_and_taken_back_at_once(arms: AdapterWorld) -> None:
    arms.bring_arms(live=1)
    begun = answered(arms, 1)
    arms.bring_arms(live=3)
    arms.bring_arms(live=1)
    assert answered(arms, 1) == begun, "bit for bit: nothing was emptied or written"


def test_more_adapters_than_fit_are_read_again_from_their_folders(arms: AdapterWorld) -> None:
    arms.bring_arms(live=1)
    first, names = f"{POLICY}@v1", [f"more-{number}" for number in range(12)]
    prompts = probe_prompts(700)[:1]
    with arms.client() as client:
        server = AdapterServer(client)
        expected, folder = server.scores(first, prompts), server.adapters()[first]
        for name in names:
            server.load(name, folder)
        for name in (*names, first):
            assert server.scores(name, prompts) == expected
            assert name in server.adapters()
        for name in names:
            server.unload(name)


def test_an_answer_ends_on_the_version_it_began_with(arms: AdapterWorld) -> None:
    arms.bring_arms(live=1)
    events = arms.events(PROMPT, model=f"{POLICY}@v1", max_tokens=200, seed=5)
    made = [next(events)]
    arms.bring_arms(live=2)
    with arms.client() as client:
        server = AdapterServer(client)
        server.unload(f"{POLICY}@v1")  # earlier than the follower ever does
        assert server.in_use() == {f"{POLICY}@v1"}, "counted, though it cannot be asked for"
    answer = collect(iter([*made, *events]))
    assert len(answer.tokens) == 200
    expected = arms.logprobs(1, answer.tokens)
    assert answer.logprobs == pytest.approx(expected, abs=network_tolerance(arms.model.config))


def test_an_adapter_with_which_the_trainer_says_something_else_is_refused(arms: AdapterWorld) -> None:
    """The versions before were served: there the log-probs agreed within rounding."""
    arms.bring_arms(live=1)
    arms.assign(4, arm=LIVE)
    row = arms.wait_for(lambda row: bool(row.problems))
    assert row.problems[LIVE]["code"] == "adapter_disagrees", row.problems
    assert row.slots[LIVE] == 1
    arms.bring_arms(live=1)


def test_a_server_that_is_started_again_has_forgotten_and_is_healed(arms: AdapterWorld) -> None:
    before = arms.bring_arms(live=2, candidate=1, canary=2)
    expected = answered(arms, 2)
    os.kill(arms.server()["process"], signal.SIGKILL)
    arms.wait_for(lambda row: row.status == "restarting" and set(row.slots.values()) == {None})
    back = arms.wait_for(lambda row: row.status == "serving" and row.slots == before.slots)
    assert back.instance != before.instance
    assert answered(arms, 2) == expected
    with arms.client() as client:
        server = AdapterServer(client)
        assert set(server.adapters()) == {f"{POLICY}@v1", f"{POLICY}@v2"}
        prompts = probe_prompts(700)
        assert server.scores(POLICY, prompts) != server.scores(f"{POLICY}@v2", prompts)
    assert {LIVE, CANDIDATE, CANARY} <= set(back.slots)
    assert CONFIG in arms.versions[1]
