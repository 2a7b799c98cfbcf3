"""Packed rows mean the same as padded ones: log-probs, entropy, loss, gradient; and they hold each shared prefix once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.packing import pack_experts
from contracts.records import Experience
from contracts.sampling import ExpertShape
from pipelines.training.known.experiences import num_tokens
from pipelines.training.learning.loss import LossSums, policy_loss
from pipelines.training.learning.micro_batches import MicroBatch, PackedBatch, micro_batches, packed_batches
from pipelines.training.learning.objectives import Objective
from policy import grouped_attention
from policy.logprobs import TokenScorer
from policy.packing import LEAST_SHARED, has_windows, make_packable, pack, packed_states
from policy.routing import routing_of
from tests.models import tiny_model
from tests.tolerances import network_tolerance
from tests.unit.pipelines.training.builders import experience, segment

FAMILIES = ("llama", "qwen3", "gemma3", "qwen3_moe", "gpt2")


def rows_of_prompts(random: np.random.Generator, vocabulary: int) -> list[Experience]:
    """Answers to three users of one system prompt, one of them asked twice, and a stranger; at several temperatures."""
    system = random.integers(0, vocabulary, 40).tolist()
    users = [[*system, *random.integers(0, vocabulary, length).tolist()] for length in (3, 20, 31)]
    prompts = [*users, users[1], random.integers(0, vocabulary, 5).tolist(), users[0]]
    found = []
    for number, prompt in enumerate(prompts):
        answer = random.integers(0, vocabulary, 1 + 4 * number).tolist()
        log_probs = (-random.random(len(answer)) * 5).tolist()
        found.append(experience(segment(prompt, answer, log_probs, temperature=(1.0, 0.7)[number % 2])))
    return found


def losses(scorer: TokenScorer, batches: Sequence[MicroBatch | PackedBatch], items: list[Experience]) -> LossSums:
    """Accumulates the gradient."""
    parts, objective = [], Objective(3.0, 0.0)
    advantages = torch.linspace(-1, 1, len(items))
    for batch in batches:
        loss, sums = policy_loss(
            batch.scored_by(scorer),
            batch.behaviour_BT,
            None,
            advantages[batch.sample_B],
            batch.mask_BT,
            num_tokens=num_tokens(items),
            objective=objective,
            temperature_B=batch.temperature_B,
        )
        torch.autograd.backward(loss)
        parts.append(sums)
    return LossSums.of(parts, objective)


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_gradient_equal_those_of_padded_rows(family: str) -> None:
    padded = tiny_model(family).requires_grad_(requires_grad=True)
    items = rows_of_prompts(np.random.default_rng(5), padded.config.vocab_size)
    expected = losses(TokenScorer(padded), micro_batches(items, max_tokens=100), items)
    rounding = network_tolerance(padded.config, 0.7)
    for max_tokens in (10_000, 60):
        packed = tiny_model(family).requires_grad_(requires_grad=True)
        assert not make_packable(packed)
        batches = packed_batches(items, max_tokens=max_tokens, windowed=has_windows(packed))
        found = losses(TokenScorer(packed), batches, items)
        for name, value in vars(expected).items():
            assert getattr(found, name) == pytest.approx(value, rel=100 * rounding, abs=100 * rounding), name
        for (name, parameter), other in zip(packed.named_parameters(), padded.parameters(), strict=True):
            if other.grad is None:
                assert parameter.grad is None, name
                continue
            backward = network_tolerance(padded.config, 0.7, backward=True) * float(other.grad.abs().max())
            torch.testing.assert_close(parameter.grad, other.grad, atol=backward, rtol=0, msg=name)


def test_groups_of_nodes_mean_the_same_as_the_tree() -> None:
    model = tiny_model("qwen3").double()
    assert not make_packable(model)
    random = np.random.default_rng(8)
    shared = random.integers(0, 700, 30)
    rows = [np.concatenate([shared, random.integers(0, 700, length)]) for length in (1, 20, 21, 40)]
    rows += [np.concatenate([rows[2], random.integers(0, 700, 7)]), random.integers(0, 700, 9)]
    tree, groups = pack(rows), pack(rows, in_groups=True)
    assert tree.tree
    assert groups.tree is None
    with torch.no_grad():
        found, expected = (packed_states(model, packing).last_hidden_state[0] for packing in (tree, groups))
    for of_tree, of_groups in zip(tree.places, groups.places, strict=True):
        torch.testing.assert_close(found[of_tree], expected[of_groups], atol=1e-4, rtol=0)


def test_a_shared_prompt_is_computed_once_and_the_budget_counts_it_once() -> None:
    items = rows_of_prompts(np.random.default_rng(5), 48)
    rows = [np.frombuffer(item.segments[0].token_ids, "<i4")[:-1] for item in items]
    [batch] = packed_batches(items, max_tokens=10_000)
    # Five rows begin with the system prompt; twice, two of them go on with the same user, one of them for long enough. Answers may
    # begin alike by chance.
    saved = sum(map(len, rows)) - len(batch.packing.ids_N)
    assert 4 * 40 + 20 <= saved < 4 * 40 + 20 + LEAST_SHARED
    assert len(packed_batches(items, max_tokens=len(batch.packing.ids_N) + 20)) == 1
    assert len(packed_batches(items, max_tokens=1)) == len(items)


def test_models_with_a_state_are_not_packed() -> None:
    model = tiny_model("mamba2")
    before = model.config._attn_implementation
    assert make_packable(model) == "not all of its layers are attention"
    assert model.config._attn_implementation == before


def test_a_model_whose_forward_takes_nothing_more_is_padded() -> None:
    model = tiny_model("llama")
    before, forward = model.config._attn_implementation, model.base_model.forward
    model.base_model.forward = lambda input_ids, use_cache: forward(input_ids=input_ids, use_cache=use_cache)
    assert make_packable(model).startswith("its forward failed on packed rows (TypeError: ")
    assert model.config._attn_implementation == before


def test_a_model_that_looks_at_its_neighbours_otherwise_is_found_out() -> None:
    model = tiny_model("llama")
    forward = model.base_model.forward

    def mixing(*args: Any, **options: Any) -> Any:
        output = forward(*args, **options)
        states = output.last_hidden_state
        output.last_hidden_state = states + states.roll(1, dims=1)
        return output

    model.base_model.forward = mixing
    assert make_packable(model) == "the states of packed rows differ from those of single rows"


def test_a_node_that_needs_too_large_a_mask_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped_attention, "_MOST_MASK", 400)
    padded, packed = (tiny_model("gemma3").requires_grad_(requires_grad=True) for _ in range(2))
    assert not make_packable(packed)
    items = rows_of_prompts(np.random.default_rng(6), padded.config.vocab_size)
    expected = losses(TokenScorer(padded), micro_batches(items, max_tokens=10_000), items)
    batches = packed_batches(items, max_tokens=10_000, windowed=True)
    assert max(group.nodes_GL.shape[1] for batch in batches for group in batch.packing.groups.groups) < 40
    found = losses(TokenScorer(packed), batches, items)
    assert found.loss == pytest.approx(expected.loss, rel=100 * network_tolerance(padded.config, 0.7))


def test_recorded_experts_reach_their_tokens() -> None:
    model = tiny_model("qwen3_moe")
    routing, random, items = routing_of(model), np.random.default_rng(4), []
    for number, item in enumerate(rows_of_prompts(random, model.config.vocab_size)):
        [part] = item.segments
        shape = ExpertShape(len(part.loss_mask) - 1, 2, 2)
        choices = np.argsort(random.random((shape.num_tokens, 2, 4)))[..., :2].astype("<u2")
        if number != 2:  # one row without a record
            part = msgspec.structs.replace(part, experts=pack_experts(choices.tobytes()), expert_shape=shape)
        items.append(msgspec.structs.replace(item, segments=(part,)))
    padded = losses(
        TokenScorer(model.requires_grad_()), micro_batches(items, max_tokens=10_000, routing=routing), items
    )
    assert not make_packable(model)
    found = losses(TokenScorer(model), packed_batches(items, max_tokens=10_000, routing=routing), items)
    own = losses(TokenScorer(model), packed_batches(items, max_tokens=10_000), items)
    assert found.loss == pytest.approx(padded.loss, rel=5 * network_tolerance(model.config, 0.7))
    assert own.loss != pytest.approx(padded.loss, rel=5 * network_tolerance(model.config, 0.7))


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 40), st.lists(st.integers(0, 2), min_size=1, max_size=30)),
        min_size=1,
    )
)
def test_every_row_is_found_in_its_places(parts: list[tuple[int, int, list[int]]]) -> None:
    """Rows are a prefix of one of four texts, then something of their own."""
    texts = [np.random.default_rng(number).integers(0, 3, 40) for number in range(4)]
    rows = [np.array([*texts[text][:length], *own], dtype=np.int32) for text, length, own in parts]
    packing = pack(rows)
    ids, positions = packing.ids_N.numpy(), packing.positions_N.numpy()
    for row, places in zip(rows, packing.places, strict=True):
        assert np.array_equal(ids[places], row)
        assert np.array_equal(positions[places], np.arange(len(row)))
    assert len(set(packing.groups.order_N.tolist())) == len(ids)
    assert len(ids) <= sum(map(len, rows))
    if len(rows) > 1 and len(min(rows, key=len)) >= LEAST_SHARED and len({row.tobytes() for row in rows}) == 1:
        assert len(ids) == len(rows[0])
