"""Tiny policies and experiences for the trainer's tests."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM

from contracts.ids import new_completion_id, sample_key
from contracts.records import Experience, Score, Segment, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.known.lineage import Lineage
from pipelines.training.learning.guard import GuardHistory
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.masters import Checkpoint
from pipelines.training.learning.trainees import trainee_of
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.settings import TrainingSettings
from pipelines.training.state import TrainerState
from tests.models import built_once, llama_config
from weights.tensors import Tensor

VOCABULARY = 48


def tiny_model(seed: int = 0, *, tied: bool = True) -> Any:
    """A random float32 Llama that holds bfloat16 values, as a policy loaded from its published bits does."""
    # Threads that wait for each other are slower than one, on a model this small and a machine that is busy.
    torch.set_num_threads(1)
    return _tiny_model(seed, tied=tied)


@built_once
def _tiny_model(seed: int, *, tied: bool) -> Any:
    torch.manual_seed(seed)
    config = llama_config(
        vocab_size=VOCABULARY,
        intermediate_size=48,
        num_attention_heads=2,
        tie_word_embeddings=tied,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval().requires_grad_(requires_grad=False)
    # Parameters only: casting the whole module would also round the rotary frequencies, which are not weights.
    for parameter in model.parameters():
        parameter.copy_(parameter.to(torch.bfloat16))
    return model


def whole(value: Any) -> Any:
    """For `msgspec.json.encode`: the state with everything that is known of samples, as older checkpoints had it."""
    return value.to_json() if isinstance(value, Lineage) else dict(value)


def a_learner(model: Any, settings: TrainingSettings, device: str = "cpu", **changes: Any) -> Learner:
    """A learner that trains all of a model, or an adapter beside it. `changes`: of the settings."""
    settings = settings.model_copy(update=changes)
    return Learner(trainee_of(model, settings, device), settings)


def model_of(learner: Learner) -> WholeModel:
    """What such a learner trains."""
    assert isinstance(learner.trainee, WholeModel)
    return learner.trainee


def bits_now(learner: Learner) -> Mapping[str, Tensor]:
    """The bits that a version cut now would have."""
    return learner.trainee.bits_of(learner.trainee.masters()[0])


def remembering(learner: Learner, norms: list[tuple[float, float]] | None = None, **signs: list[float]) -> None:
    """Let the guard remember these norms, or these values of a sign, and what else it knows."""
    known = learner.guard_history
    learner.guard_history = GuardHistory(known.norms if norms is None else norms, {**known.signs, **signs})


def weights_now(learner: Learner) -> dict[str, torch.Tensor]:
    """The weights that a checkpoint would hold now, copied."""
    return dict(captured(learner).weights)


def captured(learner: Learner, state: TrainerState | None = None, version: int | None = None) -> Checkpoint:
    """What the learner holds now, copied: later steps do not change it."""
    found = learner.capture(TrainerState() if state is None else state, version)
    weights, moments = (
        {name: each.clone() for name, each in held.items()} for held in (found.weights, found.optimizer)
    )
    return replace(found, weights=weights, optimizer=moments)


def newest_in(folder: Path) -> Checkpoint:
    """The newest checkpoint; none was refused."""
    found, refused = CheckpointStore(folder, keep=9).load_newest()
    assert refused == []
    assert found is not None
    return found


def segment(
    prompt: list[int],
    completion: list[int],
    log_probs: list[float],
    *,
    spans: tuple[Span, ...] = (Span(0, 0),),
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> Segment:
    return Segment(
        token_ids=pack_ids([*prompt, *completion]),
        loss_mask=bytes([0] * len(prompt) + [1] * len(completion)),
        logprobs=pack_floats([0.0] * len(prompt) + log_probs),
        spans=spans,
        sampling=Sampling(temperature=temperature, top_p=top_p, max_tokens=32),
    )


def experience(*segments: Segment, key: str | None = None, revision: int = 0, **changes: Any) -> Experience:
    fields: dict[str, Any] = {
        "key": key or sample_key(new_completion_id(), 0),
        "revision": revision,
        "policy": "tiny",
        "task": "task",
        "task_hash": "hash",
        "tenant": "default",
        "purpose": "user",
        "baseline_key": "task",
        "segments": segments,
        "scores": (Score(name="accepted", grader="signal/1#hash", value=1.0),),
        "reward": 1.0,
        "status": "scored",
        "generated_at": 1000.0,
        "scored_at": 1001.0,
        "engine": "ours",
        "dtype": "float32",
    }
    return Experience(**(fields | changes))


def random_experience(random: np.random.Generator, *, temperature: float = 1.0, **changes: Any) -> Experience:
    """Random tokens with plausible random log-probs."""
    prompt = random.integers(1, VOCABULARY, random.integers(2, 8)).tolist()
    completion = random.integers(1, VOCABULARY, random.integers(1, 9)).tolist()
    log_probs = (-random.exponential(3.0, len(completion))).tolist()
    spans = changes.pop("spans", (Span(0, 0),))
    fields: dict[str, Any] = {"reward": float(random.integers(0, 2)), "key": random_key(random)}
    return experience(
        segment(prompt, completion, log_probs, temperature=temperature, spans=spans), **(fields | changes)
    )


def random_key(random: np.random.Generator) -> str:
    """A sample key from the generator, not from the clock: partitions and batches are the same in every run."""
    high, low = (int(half) for half in random.spawn(1)[0].integers(0, 2**63, 2))
    value = (high << 64 | low) & ~(0xF << 76) & ~(0b11 << 62) | 0x7 << 76 | 0b10 << 62
    value |= 1 << 127  # an id whose time is long gone would be a sample that expired
    return sample_key(f"chatcmpl-{uuid.UUID(int=value)}", 0)
