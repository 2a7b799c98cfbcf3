"""A home with a real log, database and weight store, full of samples that wait; and what a trainer made of them."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from commands.home import prepare_home
from commands.up import make_settings
from contracts.event_log import EventLog
from contracts.ids import sample_key
from contracts.records import Experience, Outcome, Segment, decode, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from contracts.topics import EXPERIENCES, OUTCOMES
from pipelines.episodes.epochs.chain import Epochs, EpochStart, best, valid_through
from pipelines.training.checkpoints.checkpoint import CheckpointStore
from pipelines.training.settings import TrainingSettings
from runtime.log.outbox import message
from runtime.settings import Settings
from tests.worlds.paths import BASE, EXAMPLE
from weights.stores.opening import open_weight_store

BATCH, STEPS_OF_A_VERSION = 16, 20
_LAST = 4e9
"""When the samples were generated, in the year 2096: they have no age, so their weights are the same whenever a step is taken."""


def make_home(folder: Path, num_steps: int, seed: int, **more: Any) -> Settings:
    """A home whose log holds as many samples as these steps take. `more`: of [training]."""
    settings = make_settings(
        folder, name="reservations", base=BASE, tasks=[EXAMPLE / "task.toml"], device="cpu", web_port=1
    )
    training = TrainingSettings(
        batch_size=BATCH,
        publish_samples=BATCH * STEPS_OF_A_VERSION,
        publish_seconds=1e9,
        checkpoint_seconds=0.5,
        divergence_bound=math.inf,
        old_versions=10**6,
        **more,
    )
    prepare_home(settings, {"training": training})
    log = settings.event_log()
    for samples in _samples(num_steps, np.random.default_rng(seed)):
        log.append([message(EXPERIENCES, item.key, item) for item in samples])
    log.close()
    return settings


def digests(settings: Settings) -> dict[str, str]:
    """Of the weights, the moments and the baselines that the newest checkpoint holds."""
    checkpoint, refused = CheckpointStore(settings.checkpoints, keep=8).load_newest()
    if checkpoint is None or refused:
        raise RuntimeError(f"no intact checkpoint: {refused}")
    state = checkpoint.state
    found = {
        name: blake3(b"".join(key.encode() + tensors[key].numpy().tobytes() for key in sorted(tensors))).hexdigest(16)
        for name, tensors in (("weights", checkpoint.weights), ("moments", checkpoint.optimizer))
    }
    learned = json.dumps([state.tracker, state.comparable_norms], sort_keys=True).encode()
    return {**found, "baselines": blake3(learned).hexdigest(16)}


def decided_in(settings: Settings) -> dict[str, Outcome | None]:
    """The valid outcome of every sample in the log; None: it is pending."""
    log = settings.event_log()
    keys = {decode(Experience, value).key for value in _values(log, EXPERIENCES)}
    told: dict[str, list[Outcome]] = {}
    for value in _values(log, OUTCOMES):
        for outcome in decode(Outcome, value).each():
            told.setdefault(outcome.key, []).append(outcome)
    log.close()
    started = [EpochStart(item.epoch, item.previous, item.kept_sequence) for item in told.pop("", [])]
    epochs = Epochs(valid_through(started))
    return dict.fromkeys(keys) | {key: best(items, epochs, 0) for key, items in told.items()}


def problems_of(settings: Settings, num_steps: int) -> list[str]:
    """Why this is not: every sample decided once. By the outcomes in the log, and by the versions in the store."""
    found, store, problems = decided_in(settings), open_weight_store(settings), []
    states = [item.state if item is not None else "pending" for item in found.values()]
    # The guard may quarantine one: then it does so with kills too, or the weights would differ.
    if others := [state for state in states if state not in {"trained", "quarantined"}]:
        problems.append(f"{len(others)} samples are not decided: {sorted(set(others))}")
    versions = {item.version for item in found.values() if item is not None}
    of_version = {
        version: store.manifest(settings.policy, version).num_samples for version in store.versions(settings.policy)
    }
    for version in sorted(version for version in versions if version in of_version):
        held = sum(item is not None and item.version == version for item in found.values())
        if held != of_version[version]:
            problems.append(f"version {version} says {of_version[version]} samples, the outcomes {held}")
    if len(found) != num_steps * BATCH:
        problems.append(f"{len(found)} samples in log and outcomes, not {num_steps * BATCH}")
    return problems


def _values(log: EventLog, topic: str) -> list[bytes]:
    return [
        record.value for partition, end in log.ends(topic).items() for record in log.read(topic, partition, 0, end + 1)
    ]


def _samples(num_steps: int, random: np.random.Generator) -> Iterator[list[Experience]]:
    """One batch a step. All keys have one route: then the order of reading is the same in every run."""
    import torch  # noqa: PLC0415 the parent of the trainers starts without it
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 as above

    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    vocabulary = int(model.config.vocab_size)
    for _ in range(num_steps):
        prompts, answers = (
            [random.integers(1, vocabulary, random.integers(4, 40)).tolist() for _ in range(BATCH)] for _ in range(2)
        )
        longest = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
        rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        with torch.no_grad():
            logits = model(torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])).logits
        logprobs = logits.log_softmax(-1)
        yield [
            _sample(
                random,
                prompt,
                answer,
                [float(logprobs[number, len(prompt) + place - 1, token]) for place, token in enumerate(answer)],
            )
            for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
        ]


def _sample(random: np.random.Generator, prompt: list[int], answer: list[int], logprobs: list[float]) -> Experience:
    """Random tokens with the log-probs that the base policy gives them, so that there is something to learn."""
    value = int(_LAST * 1000) << 80 | 0x7 << 76 | 0b10 << 62 | int(random.integers(2**62))
    fields: dict[str, Any] = {
        "policy": "reservations",
        "task": "task",
        "task_hash": "",
        "tenant": "default",
        "purpose": "user",
        "baseline_key": f"task-{random.integers(4)}",
        "scores": (),
        "status": "scored",
        "scored_at": _LAST,
        "engine": "ours",
        "dtype": "float32",
    }
    segment = Segment(
        token_ids=pack_ids([*prompt, *answer]),
        loss_mask=bytes([0] * len(prompt) + [1] * len(answer)),
        logprobs=pack_floats([0.0] * len(prompt) + logprobs),
        spans=(Span(0, 0),),
        sampling=Sampling(temperature=1.0, max_tokens=64),
    )
    return Experience(
        key=sample_key(f"chatcmpl-{uuid.UUID(int=value)}", 0),
        revision=0,
        segments=(segment,),
        reward=float(random.integers(2)),
        generated_at=_LAST,
        **fields,
    )
