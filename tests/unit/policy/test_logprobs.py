# ruff: noqa: N806 - tensors carry the letters of their dimensions

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from contracts.errors import WeightsRefused
from policy import logprobs
from policy.logprobs import TokenScorer
from tests.models import KINDS, llama_config, tiny_model
from tests.tolerances import network_tolerance


def tiny_config() -> LlamaConfig:
    return llama_config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.3,
    )


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(tiny_config()).eval()


def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    input_ids_BL = torch.randint(1, 32, (3, 7), generator=torch.Generator().manual_seed(1))
    attention_BL = torch.ones_like(input_ids_BL)
    attention_BL[1, 5:] = 0
    mask_BT = torch.zeros(3, 6, dtype=torch.bool)
    mask_BT[0, 2:], mask_BT[1, 1:4], mask_BT[2, 4:] = True, True, True
    return input_ids_BL, attention_BL, mask_BT


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_scores_equal_a_softmax_over_full_logits_in_value_and_gradient(temperature: float) -> None:
    input_ids_BL, attention_BL, mask_BT = rows()
    plain, fused = tiny(), tiny()
    logits = plain(input_ids=input_ids_BL, attention_mask=attention_BL).logits[:, :-1] / temperature
    everything = torch.log_softmax(logits, -1)
    expected = everything.gather(-1, input_ids_BL[:, 1:, None]).squeeze(-1) * mask_BT
    entropy = -(everything.exp() * everything).sum(-1) * mask_BT

    scores = TokenScorer(fused)(input_ids_BL, attention_BL, mask_BT, temperature)

    rounding = network_tolerance(tiny_config(), temperature)
    torch.testing.assert_close(scores.log_probs_BT, expected, atol=rounding, rtol=0)
    torch.testing.assert_close(scores.entropy_BT, entropy, atol=rounding, rtol=0)
    torch.autograd.backward(expected.square().sum())
    torch.autograd.backward(scores.log_probs_BT.square().sum())
    for mine, theirs in zip(fused.parameters(), plain.parameters(), strict=True):
        assert theirs.grad is not None
        largest = float(theirs.grad.abs().max())
        rounding = network_tolerance(tiny_config(), temperature, backward=True) * largest
        torch.testing.assert_close(mine.grad, theirs.grad, atol=rounding, rtol=0)


@pytest.mark.parametrize("kind", [*KINDS, "gemma3 with a soft cap"])
def test_every_architecture_is_scored_as_its_own_logits_say_at_a_temperature_per_row(kind: str) -> None:
    model, twin = architecture(kind), architecture(kind)
    input_ids_BL, attention_BL, mask_BT = rows()
    temperature_B = torch.tensor([0.5, 1.0, 2.0])
    logits = twin(input_ids=input_ids_BL, attention_mask=attention_BL, use_cache=False).logits[:, :-1]
    everything = torch.log_softmax(logits.float() / temperature_B[:, None, None], -1)
    expected = everything.gather(-1, input_ids_BL[:, 1:, None]).squeeze(-1) * mask_BT
    entropy = -(everything.exp() * everything).sum(-1) * mask_BT

    scores = TokenScorer(model)(input_ids_BL, attention_BL, mask_BT, temperature_B)

    torch.testing.assert_close(scores.log_probs_BT, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(scores.entropy_BT, entropy, atol=1e-5, rtol=0)
    torch.autograd.backward(expected.square().sum())
    torch.autograd.backward(scores.log_probs_BT.square().sum())
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (mine.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None and mine.grad is not None:
            torch.testing.assert_close(
                mine.grad, theirs.grad, atol=1e-4 * float(theirs.grad.abs().max()) + 1e-9, rtol=0
            )


def architecture(kind: str) -> Any:
    """A tiny model with logits large enough that a soft cap matters."""
    model = tiny_model(kind.partition(" ")[0])
    if kind not in KINDS:
        model.config.final_logit_softcapping = 2.0
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(5)
    return model


@pytest.mark.parametrize("pieces", [1, 5])
def test_scores_do_not_depend_on_the_size_of_a_piece(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = TokenScorer(tiny())(*rows(), 0.7)
    monkeypatch.setattr(logprobs, "MIN_PIECE", pieces)
    monkeypatch.setattr(logprobs, "MAX_LOGITS", 1)
    model = tiny()
    scores = TokenScorer(model)(*rows(), 0.7)

    torch.testing.assert_close(scores.log_probs_BT, whole.log_probs_BT)
    torch.testing.assert_close(scores.entropy_BT, whole.entropy_BT)


def test_a_batch_without_scored_tokens_is_a_differentiable_zero() -> None:
    input_ids_BL, attention_BL, mask_BT = rows()
    model = tiny()
    scores = TokenScorer(model)(input_ids_BL, attention_BL, torch.zeros_like(mask_BT), 1.0)
    torch.autograd.backward(scores.log_probs_BT.sum())

    assert not scores.log_probs_BT.any()


def test_a_head_that_needs_more_than_hidden_states_is_refused_by_name() -> None:
    class Shifted(LlamaForCausalLM):  # type: ignore[misc]  # transformers has no types
        def forward(self, input_ids: torch.Tensor, **options: Any) -> Any:
            output = super().forward(input_ids, **options)
            output.logits = output.logits + input_ids[..., None]  # a head that looks at the tokens
            output.logits[..., 3] += 100 * input_ids
            return output

    with pytest.raises(WeightsRefused, match="Shifted cannot be trained"):
        TokenScorer(Shifted(tiny_config()).eval())


def test_temperatures_can_alternate() -> None:
    scorer = TokenScorer(tiny())
    first = scorer(*rows(), 1.0).log_probs_BT
    other = scorer(*rows(), 0.5).log_probs_BT

    assert torch.equal(scorer(*rows(), 1.0).log_probs_BT, first)
    assert torch.equal(TokenScorer(tiny())(*rows(), 0.5).log_probs_BT, other)
    assert not torch.allclose(first, other)


def test_generation_still_sees_plain_logits() -> None:
    model = tiny()
    before = model(input_ids=rows()[0]).logits
    TokenScorer(model)(*rows(), 0.5)

    assert torch.equal(model(input_ids=rows()[0]).logits, before)


@pytest.mark.parametrize("kind", ["llama", "gemma3 with a soft cap", "gpt2"])
def test_a_narrow_head_sums_in_float32(kind: str) -> None:
    """A bfloat16 model against a float32 one with the same weights: its logits are not rounded again, nor its gradient's sums."""
    narrow, wide = architecture(kind), architecture(kind)
    head, plain = narrow.bfloat16().get_output_embeddings(), wide.get_output_embeddings()
    plain.load_state_dict(head.state_dict())
    input_ids_BL, attention_BL, mask_BT = rows()
    states_BLD = narrow.base_model(input_ids=input_ids_BL, attention_mask=attention_BL).last_hidden_state.detach()
    logits = wide.base_model(input_ids=input_ids_BL)
    wide.base_model.forward = lambda *_, **__: type(logits)(last_hidden_state=states_BLD.float())
    narrow.base_model.forward = lambda *_, **__: type(logits)(last_hidden_state=states_BLD)
    found, expected = (
        TokenScorer(model)(input_ids_BL, attention_BL, mask_BT, 0.7).log_probs_BT for model in (narrow, wide)
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    for scores in (found, expected):
        torch.autograd.backward(scores.square().sum())
    largest = float(plain.weight.grad.abs().max())
    torch.testing.assert_close(head.weight.grad.float(), plain.weight.grad, atol=0.01 * largest, rtol=0)
