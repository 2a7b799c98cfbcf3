# ruff: noqa: N806 - tensors carry the letters of their dimensions

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from policy.logprobs import TokenScorer
from tests.tolerances import network_tolerance


def tiny_config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, initializer_range=0.3, tie_word_embeddings=True,
    )  # fmt: skip


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
