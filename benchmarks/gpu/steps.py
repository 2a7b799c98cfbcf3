"""Steps of the trainer, and plain steps on the same rows: speed, share of the card, memory, waits for the device.

In: a random policy, and rows of log-uniform lengths, others in each step, with the log-probs that this policy itself gives their tokens:
ratios are near 1, as on product traffic. The rows are the same in each process. The first step is not measured.
"""

from __future__ import annotations

import statistics
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.gpu.machine import memory, model_of, timed
from benchmarks.report import summarise
from benchmarks.trainer.plain import PlainRow, PlainStep, log_probs, plain_rows
from benchmarks.trainer.throughput import sample
from contracts.records import Experience, pack_floats
from pipelines.training.learning.figures import StepResult
from pipelines.training.learning.learner import Learner
from pipelines.training.learning.short_batches import keep_short
from pipelines.training.learning.trainees import trainee_of
from pipelines.training.learning.users_first import UsersFirst
from pipelines.training.settings import TrainingSettings
from policy.flash_attention import plan_of
from policy.tree_attention import tree_attention
from tests.worlds.paths import ROOT

H100_BF16 = 989e12
"""Dense bfloat16 FLOP/s of an H100 SXM, by NVIDIA's data sheet."""
ROWS, SHORTEST, LONGEST = 64, 128, 2048
"""Of a step; of a prompt, and of an answer."""
STEPS = 4
MAX_TOKENS = 8192
"""Of one forward pass: 16,384 do not fit into 80 GB."""
TREE = ((0, 300, 1200), (300, 301, 301), (301, 500, 900), (500, 700, 700), (700, 900, 900), (900, 1200, 1200))
"""A root with three children, one of which has two."""
_SHOWN = {
    "ratio_mean", "ratio_max", "ess", "k3", "step_moved", "step_scale", "num_divergent", "anchor_kl", "token_budget",
}  # fmt: skip


def trainer(
    *, rehearse: bool, seconds: float, size: str = "1.5B", has_anchor: bool = True, **given: Any
) -> Iterator[dict[str, Any]]:
    """`Learner.step` with the default objective, guard and bound. `given`: settings of [training]."""
    began, device = perf_counter(), "cpu" if rehearse else "cuda"
    settings = TrainingSettings(
        learning_rate=1e-5 if "adapter" in given else 1e-6,
        kl_coefficient=TrainingSettings().kl_coefficient if has_anchor else 0.0,
        precision="bfloat16",
        max_tokens=MAX_TOKENS,
        **given,
    )
    # What is trained as a whole is made in float32, as from a checkpoint; a base that only an adapter changes need not be.
    model = model_of("tiny" if rehearse else size, device, torch.float32 if size == "1.5B" else torch.bfloat16)
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    batches = [_scored(model, rows_of(number, rehearse=rehearse), device) for number in range(1 + STEPS)]
    learner = Learner(trainee_of(model, settings, device), settings)
    yield {
        "weights": num_weights,
        "prepare_seconds": perf_counter() - began,
        "resident_gib": memory(device).get("held_gib"),
    }
    results: list[StepResult] = []
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def step(number: int) -> None:
        results.append(learner.step(batches[number], [1.0] * len(batches[number]), {}))

    taken = [timed(lambda: step(0), device)]
    for number in range(1, len(batches)):
        if perf_counter() - began + 1.2 * taken[-1] > seconds:
            break
        taken.append(timed(partial(step, number), device))
        yield _speed(taken, batches, model, num_weights) | memory(device) | _figures(results[1:])
        if device == "cuda":
            yield {"bytes_per_weight": torch.cuda.max_memory_allocated() / num_weights}
    if device == "cuda" and perf_counter() - began + 1.2 * taken[-1] < seconds:
        yield {"waits_of_a_step": _waits(lambda: step(-1))}


def plain(*, rehearse: bool, seconds: float, compiled: bool = False) -> Iterator[dict[str, Any]]:
    """Plain steps on the rows of the trainer's."""
    began, device = perf_counter(), "cpu" if rehearse else "cuda"
    model = model_of("tiny" if rehearse else "1.5B", device)
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    stepper, taken, batches = PlainStep(model, compiled=compiled), list[float](), list[list[Experience]]()
    for number in range(1 + STEPS):
        batches.append(rows_of(number, rehearse=rehearse))
        rows = plain_rows(_plain(batches[-1]), MAX_TOKENS, device)
        taken.append(timed(partial(stepper.step, rows), device))
        if number:
            yield _speed(taken, batches, model, num_weights) | memory(device)
        if perf_counter() - began + 1.2 * taken[-1] > seconds:
            break


def beside_users(*, rehearse: bool, seconds: float, **given: Any) -> Iterator[dict[str, Any]]:
    """Tokens of a micro-batch that takes 200, 100 and 50 ms at most, and what it takes: as long a user waits for the trainer on the card."""
    del seconds
    device = "cpu" if rehearse else "cuda"
    settings = TrainingSettings(precision="bfloat16", max_tokens=MAX_TOKENS, **given)
    model = model_of("tiny" if rehearse else "1.5B", device, torch.bfloat16)
    learner = Learner(trainee_of(model, settings, device), settings)
    learner.trainee.users = users = UsersFirst(lambda: 0, threading.Event(), learner.trainee.device)
    for allowed in (0.2, 0.1, 0.05):
        took = keep_short(learner, users, allowed)
        yield {f"within_{1000 * allowed:.0f}_ms": {"tokens": learner.budget.most, "ms": 1000 * took}}


def attention(*, rehearse: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Results and slopes of attention over a tree, in bfloat16 on the card and on the CPU: largest differences over largest values."""
    del seconds
    torch.manual_seed(5)
    whole, found = [torch.randn(1, heads, TREE[0][2], 128) for heads in (8, 2, 2)], []
    for place in ("cpu", "cpu" if rehearse else "cuda"):
        query, key, value = states = [each.to(place, torch.bfloat16).requires_grad_() for each in whole]
        result = tree_attention(query, key, value, plan_of(TREE, place) if place == "cuda" else TREE, 128**-0.5)
        slope = torch.linspace(-1, 1, result.numel(), device=place).view_as(result).bfloat16()
        found.append([each.float().cpu() for each in (result, *torch.autograd.grad(result, states, slope))])
    yield {
        name: float((one - other).abs().max() / one.abs().max())
        for name, one, other in zip(("result", "query", "key", "value"), *found, strict=True)
    }


def rows_of(number: int, *, rehearse: bool) -> list[Experience]:
    """The samples of a step: prompts and answers of log-uniform lengths."""
    random = np.random.default_rng(7 + number)
    num, low, high = (8, 4, 24) if rehearse else (ROWS, SHORTEST, LONGEST)
    lengths = np.exp(random.uniform(np.log(low), np.log(high), (num, 2))).astype(int).tolist()
    return [sample(random, [], prompt, answer) for prompt, answer in lengths]


def _plain(items: Sequence[Experience]) -> list[PlainRow]:
    return [
        (np.frombuffer(part.token_ids, "<i4").tolist(), part.loss_mask.count(1), 2 * (item.reward or 0.0) - 1)
        for item in items
        for part in item.segments
    ]


def _scored(model: Any, items: Sequence[Experience], device: str) -> list[Experience]:
    """The samples with the policy's own log-probs."""
    rows = _plain(items)
    values = torch.cat([log_probs(model, each) for each in plain_rows(rows, MAX_TOKENS, device)])
    found = []
    for item, (ids, num, _), own in zip(items, rows, torch.split(values, [num for _, num, _ in rows]), strict=True):
        packed = pack_floats([0.0] * (len(ids) - num) + own.tolist())
        segment = msgspec.structs.replace(item.segments[0], logprobs=packed)
        found.append(msgspec.structs.replace(item, segments=(segment,)))
    return found


def _speed(
    taken: Sequence[float], batches: Sequence[Sequence[Experience]], model: Any, num_weights: int
) -> dict[str, Any]:
    """Of all steps but the first. The share counts 6 N FLOPs a token, and attention's, forward and backward."""
    config, tokens, shares = model.config, [], []
    for seconds, items in zip(taken, batches, strict=False):
        lengths = [len(ids) for ids, _, _ in _plain(items)]
        attention = (
            6 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * sum(n * n for n in lengths)
        )
        tokens.append(sum(lengths) / seconds)
        shares.append((6 * num_weights * sum(lengths) + attention) / seconds / H100_BF16)
    return {
        "first_step_seconds": taken[0],
        "seconds": summarise(taken[1:]),
        "tokens_s": summarise(tokens[1:]),
        "share_of_989_tflops": summarise(shares[1:]),
    }


def _figures(results: Sequence[StepResult]) -> dict[str, Any]:
    """Medians of the learner's own figures, and the guard's reasons."""
    names = [name for name in results[0].metrics if name.startswith("seconds_") or name in _SHOWN]
    values = {name: [result.metrics[name] for result in results] for name in names}
    medians = {name: statistics.median(map(float, each)) for name, each in values.items() if None not in each}  # type: ignore[arg-type]  # no None is left
    return {"skipped": sorted({result.skipped for result in results} - {""}), "figures": medians}


def _waits(step: Callable[[], None]) -> dict[str, int]:
    """How often the host waited for the device in a step, and the lines that did so most."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = Counter(f"{_named(each.filename)}:{each.lineno}" for each in seen if "synchroniz" in str(each.message))
    return {"all": places.total(), **dict(places.most_common(8))}


def _named(path: str) -> str:
    """A file of this repository or of a package, without the folder of one machine."""
    return path.removeprefix(f"{ROOT}/").rpartition("site-packages/")[2]
