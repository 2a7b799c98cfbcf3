"""A mixture of experts in the whole loop, as processes: see `loop.py`. The demo is a Llama.

It is paged and in shards, with fused experts, whose choices cross processes. `tests/integration/test_models_loop.py` takes every
architecture through the loop in one process. The model is built here, random, with the demo's tokenizer.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch

from contracts.records import Generation, unpack_floats, unpack_ids
from policy.load import load_model
from policy.logprobs import TokenScorer
from policy.weights import copy_tensors, tensors_of
from tests.models import build_model
from tests.tolerances import network_tolerance
from tests.worlds.policies.experts import check_experts
from tests.worlds.policies.loop import Loop, run_loop
from weights.stores.opening import open_weight_store
from weights.tensors import read_safetensors, root_of

pytestmark = pytest.mark.slow


def test_a_model_runs_the_whole_loop(tmp_path: Path) -> None:
    """Where experts are required, a sample without a record is `off_support`: a version can only come from samples that carried theirs."""
    base = build_model("qwen3_moe", tmp_path / "base", sharded=True)
    with run_loop(tmp_path, base, replay_experts="required") as loop:
        loop.work_until(lambda: loop.live >= 2 and seen(loop, 2), "version 2 live and served")
        loop.kill("engine")
        loop.kill("training")
        before = loop.live
        loop.work_until(lambda: loop.live > before and seen(loop, before + 1), "a version after the kills")
        last = loop.live
        loop.roll_back(1)
        loop.work_until(lambda: seen(loop, 1, among=8), "version 1 served again")
        loop.work_until(lambda: loop.live > last and seen(loop, last + 1), "a version after the rollback")
        check_published(loop, base)
        check_served(loop, base)
        check_experts(loop, base)


def seen(loop: Loop, version: int, *, among: int = 0) -> bool:
    """An answer came from this version or a newer one; or exactly from this one, among the last few."""
    versions = [item["version"] for item in loop.answers if "version" in item]
    return version in versions[-among:] if among else any(number >= version for number in versions)


def check_published(loop: Loop, base: Path) -> None:
    """Every version has the names of the checkpoint, and its own bits."""
    store, policy = open_weight_store(loop.home.settings), loop.home.settings.policy
    on_disk = read_safetensors(base)
    assert root_of(store.load(policy, 0)) == root_of(on_disk)
    roots = set()
    for version in store.versions(policy):
        tensors = store.load(policy, version)
        assert {name: item.shape for name, item in tensors.items()} == {n: item.shape for n, item in on_disk.items()}
        roots.add(root_of(tensors))
    assert len(roots) == len(store.versions(policy)) >= 4


def check_served(loop: Loop, base: Path) -> None:
    """The logged log-probs are those of the published bits, for answers of every version."""
    store, policy = open_weight_store(loop.home.settings), loop.home.settings.policy
    model = load_model(str(base), device="cpu", dtype=torch.float32)
    scorer, checked = TokenScorer(model), Counter[int]()
    for generation in reversed(loop.generations()):
        versions = {span.version for span in generation.spans}
        if len(versions) != 1 or checked[version := versions.pop()] >= 2:
            continue
        checked[version] += 1
        tensors = store.load(policy, version)
        copy_tensors(model, tensors)
        assert root_of(tensors_of(model)) == root_of(tensors)
        check_log_probs(scorer, model, generation)
    assert len(checked) >= 4, checked


def check_log_probs(scorer: TokenScorer, model: object, generation: Generation) -> None:
    body = generation.open()
    prompt, answer = unpack_ids(body.prompt_ids), unpack_ids(body.completion_ids)
    ids = torch.tensor([[*prompt, *answer]])
    mask = (torch.arange(1, ids.shape[1]) >= len(prompt))[None]
    with torch.no_grad():
        scores = scorer(ids, torch.ones_like(ids), mask, generation.sampling.temperature)
    logged = torch.tensor(unpack_floats(body.logprobs))
    ours = scores.log_probs_BT[0, len(prompt) - 1 :]
    tolerance = network_tolerance(model.config)  # type: ignore[attr-defined] # a model of transformers
    assert (ours - logged).abs().max() <= tolerance
