"""A home that an earlier release left: its checkpoint, its journal and its bundles are read, and the steps come to the same bits.

The files are written here byte by byte as releases until November 2026 wrote them, with nothing of today's code.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.torch
import torch
from blake3 import blake3

from pipelines.training.checkpoints.bundles import StepBundle, decode_bundle
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.checkpoints.journal import Journal
from pipelines.training.checkpoints.plans import take_again
from pipelines.training.known.known_samples import KnownSamples
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import TrainerState
from tests.unit.pipelines.training.builders import a_learner, captured, random_experience, tiny_model

NAME = "checkpoint-000003-00000007"


def new_learner() -> Learner:
    settings = TrainingSettings(learning_rate=1e-2, divergence_bound=math.inf, step_bound=math.inf)
    return a_learner(tiny_model(), settings)


def write_checkpoint(folder: Path, held: Checkpoint) -> None:
    folder.mkdir(parents=True)
    state = held.state
    safetensors.torch.save_file(dict(held.weights), folder / "weights.safetensors")
    safetensors.torch.save_file(dict(held.optimizer), folder / "optimizer.safetensors")
    facts = {
        "epoch": 3, "step": 40, "ordinal": 5, "lineage": [5, 4, 0], "positions": {"experiences": {"0": 7}},
        "tracker": state.tracker, "comparable_norms": state.comparable_norms, "guard_signs": state.guard_signs,
        "random_state": state.random_state, "model": state.model,
    }  # fmt: skip
    (folder / "state.json").write_bytes(msgspec.json.encode(facts))
    files = {
        path.name: [path.stat().st_size, blake3(path.read_bytes()).hexdigest()] for path in sorted(folder.iterdir())
    }
    manifest = {"schema": 1, "epoch": 3, "step": 40, "version": None, "files": files}
    digest = blake3(json.dumps(manifest, separators=(",", ":")).encode()).hexdigest()
    (folder / "MANIFEST.json").write_text(json.dumps({**manifest, "blake3": digest}, indent=1))


def write_journal(path: Path, *records: Mapping[str, Any]) -> None:
    digest, data = b"millrace journal", b""
    for record in records:
        payload = msgspec.msgpack.encode(record)
        digest = blake3(digest + payload).digest(16)
        data += len(payload).to_bytes(4, "big") + digest + payload
    path.write_bytes(data)


def header(epoch: int, after_epoch: int = 0, after_count: int = 0) -> dict[str, Any]:
    place = {"after_epoch": after_epoch, "after_count": after_count}
    return {"schema": 1, "checkpoint": NAME, "epoch": epoch, **place}


def planned(learner: Learner, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The records of a step that this learner takes."""
    random = np.random.default_rng(step)
    samples = sorted((random_experience(random) for _ in range(4)), key=lambda item: item.key)
    plan = {
        "type": "plan", "epoch": 3, "step": step, "at": 1000.0, "batch": {"samples": samples, "lessons": []},
        "weights": {item.key: 1.0 for item in samples}, "max_tokens": learner.budget.current, "num_threads": 1,
        "random_state": {},
    }  # fmt: skip
    result = learner.step(samples, [1.0] * len(samples), {})
    figures = [result.metrics["gradient_norm"], result.samples, sorted(result.pulls.items())]
    end = {
        "type": "end", "step": step + 1, "learned": [item.key for item in samples],
        "fates": {item.key: {"revision": 0, "state": "trained", "applied": item.reward} for item in samples},
        "max_tokens": result.metrics["token_budget"], "digest": blake3(msgspec.msgpack.encode(figures)).hexdigest(16),
        "seconds": 0.25, "guard": None,
    }  # fmt: skip
    return plan, end


def test_its_checkpoint_and_journal_lead_to_the_same_bits(tmp_path: Path) -> None:
    learner = new_learner()
    planned(learner, 39)  # so that there are moments
    write_checkpoint(tmp_path / NAME, captured(learner))
    first, second, begun = planned(learner, 40), planned(learner, 41), planned(new_learner(), 42)[0]
    kept = msgspec.json.encode({"epoch": 3, "step": 41, "ordinal": 5, "lineage": [5, 4, 0]})
    state = {"type": "state", "epoch": 3, "mark": 9, "state": kept}
    write_journal(tmp_path / NAME / "journal-000003", header(3), *first, state, begun)
    write_journal(tmp_path / NAME / "journal-000004", header(4, 3, 3), *second, begun)
    expected = captured(learner)

    checkpoint = CheckpointStore(tmp_path, keep=2).load(NAME)
    again, marks = new_learner(), []

    def samples(mark: int) -> KnownSamples:
        marks.append(mark)
        return KnownSamples()

    journal = Journal(tmp_path)
    found = journal.read(NAME, before=5)
    taken = take_again(again, checkpoint, found, samples)

    assert (checkpoint.state.step, checkpoint.state.positions) == (40, {"experiences": {0: 7}})
    assert (taken.num_steps, taken.different, marks) == (2, [], [9])
    assert taken.unfinished is not None
    assert taken.unfinished.step == 42
    assert (taken.state.step, list(taken.state.lineage)) == (42, [5, 4, 0])
    assert set(taken.state.fates) == set(second[1]["learned"]), "those before the kept state are in the file of samples"
    now = again.capture(TrainerState(), None)
    for held, wanted in ((now.weights, expected.weights), (now.optimizer, expected.optimizer)):
        assert held.keys() == wanted.keys()
        assert all(torch.equal(held[name], tensor) for name, tensor in wanted.items())
    journal.start(NAME, 5, found)
    assert journal.num_steps == 2
    assert Journal(tmp_path).read(NAME, before=6).records == found.records[:-1]


def test_a_step_that_comes_to_other_bits_is_named(tmp_path: Path) -> None:
    learner = new_learner()
    write_checkpoint(tmp_path / NAME, captured(learner))
    plan, end = planned(learner, 40)
    write_journal(tmp_path / NAME / "journal-000003", header(3), plan, end | {"digest": "of another machine"})
    checkpoint = CheckpointStore(tmp_path, keep=2).load(NAME)
    taken = take_again(new_learner(), checkpoint, Journal(tmp_path).read(NAME, before=4), lambda _: KnownSamples())
    assert (taken.num_steps, taken.different) == (1, [40])
    assert set(taken.state.fates) == set(end["learned"]), "it is learned nevertheless"


def test_its_bundle_is_read() -> None:
    look = {
        "num_rows": 2, "rows": "k", "is_whole": True, "reason": "ess_spike", "error": "", "left": [],
        "figures": {"ess": 0.5, "loss": "nan"}, "samples": [{"key": "k", "advantage": 1.0}],
    }  # fmt: skip
    culprit = {
        "key": "k", "revision": 0, "reward": 1.0, "weight": 1.0, "num_tokens": 3, "reason": "ess_spike", "error": "",
        "traceback": [],
    }  # fmt: skip
    origin = {"base": "base", "machine": {"device": "cpu", "threads": "1"}, "settings": {"batch_size": 8}}
    bundle = {
        "type": "step", "schema": 1, "epoch": 3, "step": 40, "at": 1000.0, "reason": "ess_spike", "origin": origin,
        "checkpoint": NAME, "missing": "", "plan": "d", "learned": 1, "looks": [look], "culprits": [culprit], "left": [],
    }  # fmt: skip
    digest = blake3(json.dumps(bundle, sort_keys=True).encode()).hexdigest()
    found = decode_bundle(json.dumps({**bundle, "blake3": digest}, indent=1).encode(), "bundle.json")
    assert isinstance(found, StepBundle)
    assert (found.checkpoint, found.looks[0].figures, found.culprits[0].num_tokens) == (
        NAME, {"ess": 0.5, "loss": "nan"}, 3,
    )  # fmt: skip
