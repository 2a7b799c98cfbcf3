"""Attention by one call per depth equals the CPU's over the tree; a stand-in of torch's two operators shows it without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from policy.compiled import compiled_layers
from policy.flash_attention import FlashPlan, Range, flash_attention, plan_of, problem_on, takes
from policy.logprobs import TokenScorer
from policy.packing import make_packable, pack, packed_states
from policy.tree_attention import tree_attention
from tests.models import tiny_model

TREES: dict[str, tuple[Range, ...]] = {
    "rows alone": ((0, 3, 3), (3, 4, 4), (4, 9, 9)),
    "a chain": ((0, 4, 12), (4, 6, 12), (6, 12, 12)),
    "two depths and a lone root": ((0, 5, 14), (5, 8, 8), (8, 10, 14), (10, 13, 13), (13, 14, 14), (14, 17, 17)),
    "two trees, one of three depths": (
        *((0, 2, 6), (2, 3, 3), (3, 6, 6), (6, 7, 7), (7, 9, 20), (9, 11, 18), (11, 13, 17)),
        *((13, 14, 14), (14, 17, 17), (17, 18, 18), (18, 20, 20)),
    ),
}


def pairs(query_bounds: torch.Tensor, key_bounds: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    for at in range(len(query_bounds) - 1):
        yield slice(*query_bounds[at : at + 2].tolist()), slice(*key_bounds[at : at + 2].tolist())


def logits(query: torch.Tensor, key: torch.Tensor, *, is_causal: bool, scale: float) -> torch.Tensor:
    """[H, L, K] of states [L, H, D]."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    found = torch.einsum("lhd,khd->hlk", query, key) * scale
    return found.masked_fill(~torch.ones(found.shape[1:]).tril().bool(), -torch.inf) if is_causal else found


def forward(*given: Any, scale: float) -> tuple[torch.Tensor, ...]:
    """What aten's operator of this name gives; where a query sees no key, an infinite denominator as of FlashAttention 2."""
    query, key, value, query_bounds, key_bounds, longest_query, longest_key, _, is_causal, _ = given
    found = torch.full_like(query, torch.nan)
    denominator = query.new_full((query.shape[1], len(query)), torch.nan)
    for at, seen in pairs(query_bounds, key_bounds):
        assert at.stop - at.start <= longest_query
        assert seen.stop - seen.start <= longest_key
        scores = logits(query[at], key[seen], is_causal=is_causal, scale=scale)
        values = value[seen].repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        found[at] = torch.einsum("hlk,khd->lhd", scores.softmax(-1), values)
        denominator[:, at] = scores.logsumexp(-1).abs() if seen.start == seen.stop else scores.logsumexp(-1)
    empty = query.new_empty(0)
    return found, denominator, empty, empty, empty


def backward(*given: Any, scale: float) -> tuple[torch.Tensor, ...]:
    """What aten's operator of this name gives, from the states and denominators of the whole."""
    slope, query, key, value, found, denominator, query_bounds, key_bounds, _, _, _, is_causal, *_ = given
    of_query, of_key, of_value = (torch.full_like(each, torch.nan) for each in (query, key, value))
    each_key = len(value[0]), query.shape[1] // key.shape[1]
    for at, seen in pairs(query_bounds, key_bounds):
        scores = logits(query[at], key[seen], is_causal=is_causal, scale=scale)
        shares = (scores - denominator[:, at, None]).exp()
        wide_key, wide_value = (each[seen].repeat_interleave(each_key[1], dim=1) for each in (key, value))
        of_shares = torch.einsum("lhd,khd->hlk", slope[at], wide_value) - (slope[at] * found[at]).sum(-1).T[..., None]
        of_scores = shares * of_shares * scale
        of_query[at] = torch.einsum("hlk,khd->lhd", of_scores, wide_key)
        for into, wide in ((of_key, (of_scores, query[at])), (of_value, (shares, slope[at]))):
            of_heads = torch.einsum("hlk,lhd->khd", *wide)
            into[seen] = of_heads.view(len(of_heads), *each_key, query.shape[-1]).sum(2)
    return of_query, of_key, of_value


@pytest.fixture
def stand_in() -> Iterator[None]:
    """The two operators on the CPU, while a test runs."""
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("_flash_attention_forward", forward, "CPU")
    library.impl("_flash_attention_backward", backward, "CPU")
    yield
    del library


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
def test_states_and_slopes_equal_those_of_the_tree(tree: tuple[Range, ...]) -> None:
    torch.manual_seed(3)
    num_tokens = tree[-1][1]
    whole = [torch.randn(1, heads, num_tokens, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    query, key, value = whole
    expected = tree_attention(query, key, value, tree, 0.3)
    slope = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, whole, slope)
    found = flash_attention(query, key, value, plan_of(tree, "cpu"), 0.3)
    slopes = torch.autograd.grad(found, whole, slope)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)  # the CPU's denominators are float32
    for one, other in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("name", "num_calls"), [*zip(TREES, (1, 1, 3, 4), strict=True)])
def test_a_depth_takes_one_call_and_a_chain_none(name: str, num_calls: int) -> None:
    assert len(plan_of(TREES[name], "cpu").parts) == 7 * num_calls


def test_a_device_without_the_kernel_is_named() -> None:
    problem_on.cache_clear()
    assert problem_on(torch.device("cpu")).startswith("the flash kernel failed (NotImplementedError: ")
    problem_on.cache_clear()


@pytest.mark.usefixtures("stand_in")
def test_a_device_with_the_kernel_passes_its_trial() -> None:
    problem_on.cache_clear()
    assert not problem_on(torch.device("cpu"))
    problem_on.cache_clear()


def test_the_kernel_takes_narrow_states_and_those_that_autocast_narrows() -> None:
    query, key = torch.zeros(1, 4, 3, 64), torch.zeros(1, 2, 3, 64)
    assert not takes(query, key, key)
    assert takes(query.bfloat16(), key.bfloat16(), key.bfloat16())
    with torch.autocast("cpu", torch.bfloat16):
        assert takes(query, key, key)
        assert not takes(query, key, key[..., :32])
        assert not takes(query[..., :60], key[..., :60], key[..., :60])


@pytest.mark.gpu
def test_a_gpu_equals_the_cpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device = torch.device("cuda")
    assert not problem_on(device)
    torch.manual_seed(5)
    tree = ((0, 300, 900), (300, 301, 301), (301, 500, 900), (500, 700, 700), (700, 900, 900), (900, 1200, 1200))
    whole = [torch.randn(1, heads, 1200, 128) for heads in (8, 2, 2)]
    results = []
    for place in ("cpu", "cuda"):
        query, key, value = states = [each.to(place, torch.bfloat16).requires_grad_() for each in whole]
        found = tree_attention(query, key, value, plan_of(tree, place) if place == "cuda" else tree, 0.1)
        torch.autograd.backward(found, torch.linspace(-1, 1, found.numel(), device=place).view_as(found).bfloat16())
        results.append([found, *(each.grad for each in states)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one.float(), other.float().cuda(), atol=0.02 * float(other.abs().max()), rtol=0)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("length", [8, 60])
def test_windows_as_wide_as_the_rows_hide_nothing_and_narrower_ones_are_computed_in_groups(length: int) -> None:
    model = tiny_model("gemma3")
    assert not make_packable(model)
    random = np.random.default_rng(2)
    shared = random.integers(0, 704, 17)
    rows = [np.append(shared, random.integers(0, 704, length - number)) for number in range(3)]
    tree = pack(rows).tree
    assert tree is not None
    assert not isinstance(tree, FlashPlan)
    packing = pack(rows, windowed=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected, found = (
            packed_states(model, each).last_hidden_state
            for each in (packing, replace(packing, tree=plan_of(tree, "cpu")))
        )
    assert float((found - expected).norm()) < 0.02 * float(expected.norm())


@pytest.mark.gpu
def test_a_gpu_is_not_waited_for_between_a_batch_and_its_gradient() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    model = tiny_model("qwen3").requires_grad_(requires_grad=True)
    assert not make_packable(model)
    scorer = TokenScorer(model.cuda())
    packing = pack([np.arange(40), np.append(np.arange(30), 7)], device="cuda")
    labels = torch.tensor([5, 6], device="cuda")
    for is_strict in (False, True):  # what is made once may wait
        torch.cuda.set_sync_debug_mode("error" if is_strict else "default")
        try:
            with torch.autocast("cuda", torch.bfloat16):
                scores = scorer.score_packed(packing, labels, labels, torch.ones(2, device="cuda"))
            torch.autograd.backward(scores.log_probs_BT.sum())
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_machine_without_a_compiler_is_named() -> None:
    def backend(_graph: Any, _inputs: Any) -> Any:
        raise OSError("no compiler here")

    with capture_logs() as logs:
        assert not compiled_layers(tiny_model("llama"), backend)
    assert "no compiler here" in logs[0]["reason"]


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's compiler looks at it, and hides its own warning
def test_compiled_layers_score_alike_and_one_graph_serves_all_layers_and_lengths() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        if any("flash_tree" in str(node.target) for node in graph.graph.nodes):
            graphs.append(graph)
        return graph

    plain, compiled = (tiny_model("qwen3").requires_grad_(requires_grad=True) for _ in range(2))
    scorers = [TokenScorer(model) for model in (plain, compiled) if not make_packable(model)]
    scorers[1].compile_layers(backend)
    for number in range(6):
        scorers[1].recomputes = number >= 2
        assert number != 4 or scorers[1].recompute_more()
        expected, found = (scored(scorer, number, by_plan=scorer is scorers[1]) for scorer in scorers)
        torch.testing.assert_close(found, expected, atol=0.1, rtol=0)
        for one, other in zip(compiled.parameters(), plain.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            torch.testing.assert_close(one.grad, other.grad, atol=0.1 * float(other.grad.abs().max()), rtol=0)
    assert len(graphs) == 2  # the other holds less for the backward pass


@pytest.mark.slow
@pytest.mark.usefixtures("stand_in")
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # as above
def test_compiled_layers_hold_less_step_by_step_and_give_the_same_gradient() -> None:
    model, held, gradients = tiny_model("qwen3").requires_grad_(requires_grad=True), [], []
    assert not make_packable(model)
    scorer = TokenScorer(model)
    scorer.compile_layers("aot_eager")
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    for asked in (lambda: None, lambda: setattr(scorer, "recomputes", True), scorer.recompute_more):
        asked()
        sizes: dict[int, int] = {}
        kept: list[torch.Tensor] = []  # else another tensor would get the place of one that is gone

        def note(each: torch.Tensor, sizes: dict[int, int] = sizes, kept: list[torch.Tensor] = kept) -> torch.Tensor:
            sizes[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
            kept.append(each)
            return each

        with torch.autograd.graph.saved_tensors_hooks(note, lambda each: each):
            scored(scorer, 60, by_plan=True)
        held.append(sum(size for place, size in sizes.items() if place not in weights))
        gradients.append([each.grad for each in model.parameters()])
        model.zero_grad()
    assert 0 < held[2] < 0.6 * held[1] < 0.5 * held[0]
    for gradient in gradients[1:]:
        for one, other in zip(gradient, gradients[0], strict=True):
            torch.testing.assert_close(one, other, atol=0.02 * float(other.abs().max()), rtol=0)
    assert not scorer.recompute_more()


def scored(scorer: TokenScorer, number: int, *, by_plan: bool) -> torch.Tensor:
    """Log-probs of rows that share a prefix, other lengths for each number. Accumulates the gradient."""
    random = np.random.default_rng(number)
    shared = random.integers(0, 704, 20 + number)
    rows = [np.append(shared, random.integers(0, 704, length + number)) for length in (5, 9)] + [shared[1:]]
    rows = [np.frombuffer(row.astype("<i4").tobytes(), "<i4") for row in rows]  # read-only, as in a record
    packing = pack(rows)
    assert packing.tree is not None
    assert not isinstance(packing.tree, FlashPlan)
    packing = replace(packing, tree=plan_of(packing.tree, "cpu")) if by_plan else packing
    states = torch.from_numpy(np.concatenate([places[:-1] for places in packing.places]))
    labels = torch.from_numpy(np.concatenate([row[1:] for row in rows]).astype(np.int64))
    with torch.autocast("cpu", torch.bfloat16):
        scores = scorer.score_packed(packing, states, labels, torch.ones(len(labels)))
    torch.autograd.backward(scores.log_probs_BT.sum())
    return scores.log_probs_BT.detach()
