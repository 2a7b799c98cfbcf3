"""Every architecture through the loop in one process: served, learned from, published, swapped, killed, rolled back and trained again.

In: a checkpoint on disk, random and tiny. The engine, the learner and the weight store are the real ones; `tests/end_to_end/test_models.py`
has the mixture of experts in the processes that users start.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.records import Experience
from contracts.sampling import Span
from pipelines.training.learning.learner import Learner
from pipelines.training.settings import TrainingSettings
from policy.load import load_model
from policy.weights import copy_tensors, tensors_of
from services.engine.engine import Engine
from tests.models import KINDS, build_model
from tests.tolerances import network_tolerance
from tests.unit.pipelines.training.builders import a_learner, bits_now, captured, experience, segment
from tests.worlds.engines.memory_store import POLICY
from tests.worlds.engines.policies import PROMPTS, request
from tests.worlds.engines.tiny import complete, logprobs_of, make_engine
from weights.publish import publish_version
from weights.stores.opening import open_store_at
from weights.tensors import read_safetensors, root_of

pytestmark = pytest.mark.slow

SHARDED = {"gemma3", "qwen3_moe"}
SETTINGS = TrainingSettings(learning_rate=1e-2, divergence_bound=math.inf, step_bound=math.inf)


class LoopInOneProcess:
    """A checkpoint, and the store of the versions that were learned from it."""

    def __init__(self, base: Path, weights: Path) -> None:
        weights.mkdir()
        self.base, self.store = base, open_store_at(weights)

    def model(self, version: int | None = None) -> Any:
        """The checkpoint's model with the published bits of a version, or with its own, rounded as published ones are."""
        model = load_model(str(self.base), device="cpu", dtype=torch.float32)
        copy_tensors(model, tensors_of(model) if version is None else self.store.load(POLICY, version))
        return model

    def learner(self) -> Learner:
        """As at the start of the trainer."""
        return a_learner(self.model(), SETTINGS)

    def engine(self, stack: ExitStack, version: int) -> Engine:
        """As at the start of the engine's process; `stack` ends it."""
        engine = make_engine(self.store, make_model=self.model)
        stack.callback(engine.close)
        engine.update("live", version)
        return engine

    def publish(self, learner: Learner, version: int, parent: int | None) -> None:
        """Cut a version."""
        base = None if parent is None else self.store.load(POLICY, parent)
        publish_version(
            self.store, policy=POLICY, run="test", version=version, parent=parent, base=base, target=bits_now(learner),
            step=version, epoch=0, num_samples=len(PROMPTS), created_at=1_780_000_000.0,
        )  # fmt: skip

    async def served(self, engine: Engine, version: int) -> list[Experience]:
        """Answers of this version, whose log-probs are those of its published bits; every other one is liked."""
        model, found = self.model(version), list[Experience]()
        assert root_of(tensors_of(model)) == root_of(self.store.load(POLICY, version))
        asked = [request(prompt, seed=version, temperature=1.0) for prompt in PROMPTS]
        answers = await asyncio.gather(*(complete(engine, one) for one in asked))
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            assert {span.version for span in answer.spans} == {version}
            expected = logprobs_of(model, prompt, answer.token_ids)
            assert answer.logprobs == pytest.approx(expected, abs=network_tolerance(model.config))
            made = segment(prompt, answer.token_ids, answer.logprobs, spans=(Span(0, version),))
            found.append(experience(made, reward=float(len(found) % 2)))
        return found


def learn(learner: Learner, items: list[Experience]) -> None:
    assert learner.step(items, [1.0] * len(items), {0: None}).skipped == ""


@pytest.mark.parametrize("kind", KINDS)
async def test_an_architecture_goes_round_the_loop(kind: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    loop = LoopInOneProcess(build_model(kind, tmp_path / "base", sharded=kind in SHARDED), tmp_path / "weights")
    learner = loop.learner()
    loop.publish(learner, 0, None)
    with ExitStack() as processes:
        engine = loop.engine(processes, 0)
        learn(learner, await loop.served(engine, 0))
        loop.publish(learner, 1, 0)
        engine.update("live", 1)
        kept, batch = captured(learner, version=1), await loop.served(engine, 1)
        learn(learner, batch)
        loop.publish(learner, 2, 1)
        engine.update("live", 2)
        await loop.served(engine, 2)

    with ExitStack() as processes:  # both were killed
        learner, engine = loop.learner(), loop.engine(processes, 2)
        learner.restore(kept)
        learn(learner, batch)
        assert root_of(bits_now(learner)) == root_of(loop.store.load(POLICY, 2)), "it goes on exactly"
        await loop.served(engine, 2)

        engine.update("live", 1)  # rolled back
        learner.restart_from(loop.store.load(POLICY, 1))()
        learn(learner, await loop.served(engine, 1))
        loop.publish(learner, 3, 1)
        engine.update("live", 3)
        await loop.served(engine, 3)

    on_disk = read_safetensors(loop.base)
    versions = [loop.store.load(POLICY, version) for version in loop.store.versions(POLICY)]
    shapes = {name: tensor.shape for name, tensor in on_disk.items()}
    assert all({name: tensor.shape for name, tensor in version.items()} == shapes for version in versions)
    roots = [root_of(version) for version in versions]
    assert roots[0] == root_of(on_disk)
    assert len(roots) == len(set(roots)) == 4
