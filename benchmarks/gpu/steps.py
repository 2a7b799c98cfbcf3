"""Steps of the trainer, and plain steps on the same rows: speed, share of the card, memory, waits for the device.

In: a random policy, and rows of log-uniform lengths, others in each step, with the log-probs that this policy itself gives their tokens:
ratios are near 1, as on product traffic. Rows of all steps are the same in each process. The first step is not measured.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch

from benchmarks.gpu.machine import H100_BF16, model_of, peak_gib, spread, timed, wait
from benchmarks.trainer.plain import PlainStep, log_probs, plain_rows
from benchmarks.trainer.throughput import sample
from contracts.records import Segment, pack_floats
from pipelines.training.learning import trainees
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.settings import TrainingSettings

if TYPE_CHECKING:
    from contracts.records import Experience
    from pipelines.training.learning.figures import StepResult

ROWS, SHORTEST, LONGEST = 64, 128, 2048
"""Of a step; of a prompt, and of an answer."""
MOST_STEPS = 6
MAX_TOKENS = 8192
"""Of one forward pass: 16,384 do not fit into 80 GB."""
RATES = {"whole": 1e-6, "adapter": 1e-5}
_SHOWN = ("ratio_mean", "ratio_max", "ess", "k3", "step_moved", "step_scale", "num_divergent", "anchor_kl", "gradient_norm")


def trainer(
    *, rehearse: bool, seconds: float, size: str = "1.5B", anchor: str = "computed", **given: Any
) -> Iterator[dict[str, Any]]:
    """`Learner.step` with the default objective, guard and bound. `given`: settings of [training] that a build may not have yet."""
    began, device = time.perf_counter(), "cpu" if rehearse else "cuda"
    if missing := sorted(given.keys() - TrainingSettings.model_fields.keys()):
        yield {"not_run": f"not in this build: [training] {', '.join(missing)}"}
        return
    if anchor == "given" and "anchor_logprobs" not in Segment.__struct_fields__:
        yield {"not_run": "not in this build: log-probs of the anchor in a sample"}
        return
    settings = TrainingSettings(
        learning_rate=RATES["adapter" if "adapter" in given else "whole"],
        kl_coefficient=0.0 if anchor == "none" else TrainingSettings().kl_coefficient,
        precision="bfloat16",
        max_tokens=256 if rehearse else MAX_TOKENS,
        **given,
    )
    model = model_of("tiny" if rehearse else size, device, torch.float32 if size == "1.5B" else torch.bfloat16)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    batches = [_scored(model, rows_of(number, rehearse=rehearse), device, anchor) for number in range(1 + MOST_STEPS // 2)]
    resident = _allocated(device)
    # A build without adapters has one kind only.
    learner = Learner(getattr(trainees, "trainee_of", WholeModel)(model, settings, device), settings)
    figures = {"parameters": num_parameters, "prepare_seconds": time.perf_counter() - began, "base_gib": resident}
    figures["resident_gib"] = _allocated(device)
    results: list[StepResult] = []
    taken: list[tuple[float, int]] = []

    def step(items: Sequence[Experience]) -> None:
        results.append(learner.step(items, [1.0] * len(items), {}))

    for number, items in enumerate(batches):
        taken.append((timed(lambda items=items: step(items), device), num_tokens(items)))  # type: ignore[misc]
        figures["first_step_seconds"] = taken[0][0]
        if number:
            yield figures | _speed(taken[1:], batches[1:], model, num_parameters, device) | _of(results[1:])
        if time.perf_counter() - began + 2.5 * taken[-1][0] > seconds:
            break
    if device == "cuda" and len(taken) > 1:
        yield {"waits_of_a_step": _waits(lambda: step(batches[-1]))}


def plain(*, rehearse: bool, seconds: float, compiled: bool = False) -> Iterator[dict[str, Any]]:
    """Plain steps on the rows of the trainer's."""
    began, device = time.perf_counter(), "cpu" if rehearse else "cuda"
    model = model_of("tiny" if rehearse else "1.5B", device)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    stepper, taken, batches = PlainStep(model, compiled=compiled), list[tuple[float, int]](), []
    for number in range(1 + MOST_STEPS):
        batches.append(rows_of(number, rehearse=rehearse))
        rows = plain_rows(_plain(batches[-1]), 256 if rehearse else MAX_TOKENS, device)
        taken.append((timed(lambda rows=rows: stepper.step(rows), device), num_tokens(batches[-1])))  # type: ignore[misc]
        if number:
            found = _speed(taken[1:], batches[1:], model, num_parameters, device)
            yield {"parameters": num_parameters, "first_step_seconds": taken[0][0], **found}
        if time.perf_counter() - began + 1.5 * taken[-1][0] > seconds:
            break


def rows_of(number: int, *, rehearse: bool = False) -> list[Experience]:
    """The samples of a step: prompts and answers of log-uniform lengths."""
    random = np.random.default_rng(7 + number)
    num, low, high = (8, 4, 24) if rehearse else (ROWS, SHORTEST, LONGEST)
    lengths = np.exp(random.uniform(np.log(low), np.log(high), (num, 2))).astype(int).tolist()
    return [sample(random, [], prompt, answer) for prompt, answer in lengths]


def num_tokens(items: Sequence[Experience]) -> int:
    """Of all rows, prompts too."""
    return sum(len(ids) for ids, _, _ in _plain(items))


def _plain(items: Sequence[Experience]) -> list[tuple[list[int], int, float]]:
    segments = [(item.segments[0], item.reward or 0.0) for item in items]
    return [
        (np.frombuffer(each.token_ids, "<i4").tolist(), each.loss_mask.count(1), 2 * reward - 1)
        for each, reward in segments
    ]


def _scored(model: Any, items: list[Experience], device: str, anchor: str) -> list[Experience]:
    """The samples with the policy's own log-probs."""
    found = []
    rows = _plain(items)
    values = torch.cat([log_probs(model, each) for each in plain_rows(rows, MAX_TOKENS, device)]).tolist()
    places = count()
    for item, (ids, num_sampled, _) in zip(items, rows, strict=True):
        own = pack_floats([0.0] * (len(ids) - num_sampled) + [values[next(places)] for _ in range(num_sampled)])
        more = {"anchor_logprobs": own} if anchor == "given" else {}
        [segment] = item.segments
        found.append(msgspec.structs.replace(item, segments=(msgspec.structs.replace(segment, logprobs=own, **more),)))
    return found


def _speed(
    taken: Sequence[tuple[float, int]], batches: Sequence[list[Experience]], model: Any, num_parameters: int, device: str
) -> dict[str, Any]:
    """Median over steps, each with its own rows. The share counts 6 N FLOPs a token, and attention's, forward and backward."""
    config, shares = model.config, []
    for (seconds, tokens), items in zip(taken, batches, strict=False):
        squares = sum(len(ids) ** 2 for ids, _, _ in _plain(items))
        attention = 6 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * squares
        shares.append((6 * num_parameters * tokens + attention) / seconds / H100_BF16)
    return {
        "seconds": spread([seconds for seconds, _ in taken]),
        "tokens_s": spread([tokens / seconds for seconds, tokens in taken]),
        "share_of_989_tflops": spread(shares),
        "peak_gib": peak_gib(device),
        "bytes_per_parameter": None if device == "cpu" else torch.cuda.max_memory_allocated() / num_parameters,
    }


def _of(results: Sequence[StepResult]) -> dict[str, Any]:
    """Medians of the learner's own figures."""
    metrics = [result.metrics for result in results]
    stages = sorted(name for name in metrics[0] if name.startswith("seconds_"))
    found = {name: [each[name] for each in metrics if each.get(name) is not None] for name in (*stages, *_SHOWN)}
    medians = {name: statistics.median(values) for name, values in found.items() if values}
    return {"skipped": sorted({result.skipped for result in results} - {""}), "figures": medians}


def _waits(step: Any) -> dict[str, int]:
    """How often the host waited for the device in a step, by the line that asked for it."""
    found: dict[str, int] = {}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for each in seen:
        if "synchroniz" in str(each.message):
            place = f"{'/'.join(each.filename.split('/')[-2:])}:{each.lineno}"
            found[place] = found.get(place, 0) + 1
    return {"all": sum(found.values()), **dict(sorted(found.items(), key=lambda item: -item[1])[:8])}


def _allocated(device: str) -> float | None:
    wait(device)
    return torch.cuda.memory_allocated() / 2**30 if device == "cuda" else None
