"""Our loss and gradient against trl's own `GRPOTrainer._compute_loss`, on the same samples."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from contracts.records import Experience, pack_floats
from pipelines.training.known.experiences import num_tokens
from pipelines.training.learning.loss import LossSums, policy_loss
from pipelines.training.learning.micro_batches import micro_batches, packed_batches
from pipelines.training.learning.objectives import Objective
from policy.logprobs import TokenScorer
from policy.packing import make_packable
from tests.tolerances import network_tolerance
from tests.unit.pipelines.training.builders import VOCABULARY, random_experience, tiny_model

BOUND, FAR = 3.0, 1e6


LAYOUTS: dict[str, Callable[..., Any]] = {"padded": micro_batches, "packed": packed_batches}


@cache
def trainer_class(*, is_detached: bool) -> Any:
    """trl's trainer of this loss; `is_detached`: with the ratio of the leash as a constant under differentiation.

    trl differentiates through it. Its logged log-probs are made to move with the current ones, so that their difference
    has the right value and no slope; `cispo` detaches the ratio of the policy term by itself.
    """
    from trl import GRPOTrainer  # noqa: PLC0415 takes seconds, in every process that only collects these tests

    class DetachedRatioTrainer(GRPOTrainer):  # type: ignore[misc]  # trl has no types
        def _get_per_token_logps_and_entropies(self, *arguments: Any, **options: Any) -> Any:
            found = super()._get_per_token_logps_and_entropies(*arguments, **options)
            self.inputs["old_per_token_logps"] = self.inputs["old_per_token_logps"] + found[0] - found[0].detach()
            return found

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            self.inputs = inputs
            return super()._compute_loss(model, inputs)

    return DetachedRatioTrainer if is_detached else GRPOTrainer


TWINS: dict[str, dict[str, Any]] = {
    "truncated": {"loss_type": "cispo", "epsilon_high": BOUND},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "ppo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "delta": BOUND},
    "gspo": {
        "loss_type": "dapo", "epsilon": 0.10, "epsilon_high": 0.14, "delta": BOUND, "importance_sampling_level": "sequence",
    },
}  # fmt: skip
"""Ours to the settings of trl with the same loss; trl has no DPPO, M2PO and VCPO."""


def trainer_of_trl(model: Any, folder: Path, beta: float, temperature: float, bound: float, **options: Any) -> Any:
    from datasets import Dataset  # type: ignore[import-untyped]  # noqa: PLC0415 as above; needed by trl, without types
    from trl import GRPOConfig  # noqa: PLC0415 as above

    vocabulary = {f"t{index}": index for index in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="t0")),  # noqa: S106 a token of text
        pad_token="t0",  # noqa: S106 as above
        eos_token="t1",  # noqa: S106 as above
    )
    arguments = GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to=[], per_device_train_batch_size=2, beta=beta,
        num_generations=2, use_bias_correction_kl=True, temperature=temperature, activation_checkpointing=False,
        disable_dropout=True, **({"loss_type": "cispo", "epsilon_high": bound} | options),
    )  # fmt: skip
    # Without a leash nothing needs the trick, and the clipped losses differentiate through their ratio.
    return trainer_class(is_detached=beta > 0)(
        model=model,
        args=arguments,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["t2", "t3"]}),
        processing_class=tokenizer,
    )


def inputs_of_trl(batch: list[Experience], advantages: torch.Tensor) -> dict[str, torch.Tensor]:
    """Prompts padded left, completions right: trl's layout, built without any of our code."""
    width_prompt, width_completion = (
        max(segment.loss_mask.count(value) for item in batch for segment in item.segments) for value in (0, 1)
    )
    shape_prompt, shape_completion = (len(batch), width_prompt), (len(batch), width_completion)
    inputs = {
        "prompt_ids": torch.zeros(shape_prompt, dtype=torch.long),
        "prompt_mask": torch.zeros(shape_prompt, dtype=torch.long),
        "completion_ids": torch.zeros(shape_completion, dtype=torch.long),
        "completion_mask": torch.zeros(shape_completion, dtype=torch.long),
        "old_per_token_logps": torch.zeros(shape_completion),
        "advantages": advantages,
    }
    for row, item in enumerate(batch):
        tokens = np.frombuffer(item.segments[0].token_ids, "<i4").tolist()
        log_probs = np.frombuffer(item.segments[0].logprobs, "<f4").tolist()
        start = item.segments[0].loss_mask.index(1)
        length = len(tokens) - start
        inputs["prompt_ids"][row, width_prompt - start :] = torch.tensor(tokens[:start])
        inputs["prompt_mask"][row, width_prompt - start :] = 1
        inputs["completion_ids"][row, :length] = torch.tensor(tokens[start:])
        inputs["completion_mask"][row, :length] = 1
        inputs["old_per_token_logps"][row, :length] = torch.tensor(log_probs[start:])
    inputs["num_items_in_batch"] = inputs["completion_mask"].sum()
    return inputs


@pytest.mark.parametrize(
    ("beta", "temperature", "bound"), [(0.0, 1.0, BOUND), (0.0, 0.8, BOUND), (0.02, 1.0, FAR), (0.02, 0.8, FAR)]
)
def test_loss_and_gradient_equal_trl(tmp_path: Path, beta: float, temperature: float, bound: float) -> None:
    """trl does not bound the ratio of the leash, so with a leash our ratio is unbounded here too."""
    random = np.random.default_rng(7)
    batch = [random_experience(random, temperature=temperature) for _ in range(6)]
    advantages = torch.tensor(random.normal(size=6), dtype=torch.float32)
    tiny_model(1).save_pretrained(tmp_path)  # with beta, trl loads a reference model from where the policy came from
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).requires_grad_(requires_grad=True)

    inputs = inputs_of_trl(batch, advantages)
    trl_trainer = trainer_of_trl(theirs, tmp_path, beta, temperature, bound)
    trl_trainer.current_gradient_accumulation_steps = 1
    if beta:
        scorer = TokenScorer(tiny_model(2))
        input_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        mask = torch.cat([torch.zeros_like(inputs["prompt_mask"]), inputs["completion_mask"]], 1)[:, 1:].bool()
        scores = scorer(input_ids, attention, mask, temperature)
        inputs["ref_per_token_logps"] = scores.log_probs_BT[:, -inputs["completion_ids"].shape[1] :].detach()
    expected = trl_trainer._compute_loss(trl_trainer.model, inputs)
    expected.backward()

    for layout, in_batches in LAYOUTS.items():
        mine, anchor = tiny_model(1).requires_grad_(requires_grad=True), tiny_model(2)
        total, clipped, ratio_max = 0.0, 0.0, 0.0
        scorer, anchor_scorer = TokenScorer(mine), TokenScorer(anchor)
        if layout == "packed":
            assert not make_packable(mine)
            assert not make_packable(anchor)
        for micro in in_batches(batch, max_tokens=40):
            objective = Objective(ratio_bound=bound, kl_coefficient=beta)
            loss, micro_sums = policy_loss(
                micro.scored_by(scorer),
                micro.behaviour_BT,
                micro.scored_by(anchor_scorer).log_probs_BT.detach() if beta else None,
                advantages[micro.sample_B],
                micro.mask_BT,
                num_tokens=num_tokens(batch),
                objective=objective,
            )
            torch.autograd.backward(loss)
            sums = LossSums.of([micro_sums], objective)
            total += sums.loss
            clipped += sums.clipped
            ratio_max = max(ratio_max, sums.ratio_max)

        assert (clipped > 0) == (bound == BOUND), "the batch must exercise the bound"
        # The losses of the samples partly cancel; each is at most as large as its ratio.
        room = network_tolerance(mine.config, temperature) * min(bound, ratio_max)
        assert total == pytest.approx(expected.item(), abs=room), layout
        same_gradients(mine, theirs, temperature)


def same_gradients(mine: Any, theirs: Any, temperature: float = 1.0) -> None:
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in mine.named_parameters():
        rounding = network_tolerance(mine.config, temperature, backward=True) * float(gradients[name].abs().max())
        torch.testing.assert_close(parameter.grad, gradients[name], atol=rounding, rtol=0)


@pytest.mark.parametrize("loss", TWINS)
def test_each_objective_that_trl_has_equals_it(tmp_path: Path, loss: str) -> None:
    random = np.random.default_rng(11)
    theirs = tiny_model(1)
    batch = near(theirs, [random_experience(random) for _ in range(8)], random)
    advantages = torch.tensor(random.normal(size=8), dtype=torch.float32)
    theirs.requires_grad_(requires_grad=True)
    trl_trainer = trainer_of_trl(theirs, tmp_path, 0.0, 1.0, BOUND, **TWINS[loss])
    trl_trainer.current_gradient_accumulation_steps = 1
    expected = trl_trainer._compute_loss(trl_trainer.model, inputs_of_trl(batch, advantages))
    expected.backward()

    for layout, in_batches in LAYOUTS.items():
        mine = tiny_model(1).requires_grad_(requires_grad=True)
        if layout == "packed":
            assert make_packable(mine) == ""
        scorer, parts, objective = TokenScorer(mine), [], Objective(BOUND, 0.0, loss)
        for micro in in_batches(batch, max_tokens=40):
            found, sums = policy_loss(
                micro.scored_by(scorer), micro.behaviour_BT, None, advantages[micro.sample_B], micro.mask_BT,
                num_tokens=num_tokens(batch), objective=objective,
                sequences=None if micro.sequence_B is None else (micro.sequence_B, len(batch)),
            )  # fmt: skip
            torch.autograd.backward(found)
            parts.append(sums)
        total = LossSums.of(parts, objective)
        assert 0 < total.clipped < total.num_tokens, "the batch must exercise the clip"
        assert total.loss == pytest.approx(expected.item(), abs=10 * network_tolerance(mine.config)), layout
        same_gradients(mine, theirs)


def near(model: Any, batch: list[Experience], random: np.random.Generator) -> list[Experience]:
    """The samples with log-probs around the model's: sequences inside, above and below every clip."""
    scorer, found = TokenScorer(model), []
    for index, item in enumerate(batch):
        [micro] = micro_batches([item], max_tokens=1000)
        log_probs = micro.scored_by(scorer).log_probs_BT.detach()[micro.mask_BT].numpy()
        shift = (-1.8, -0.3, 0.05, 0.4)[index % 4] + random.normal(0, 0.2, len(log_probs))
        segment = item.segments[0]
        prompt = [0.0] * segment.loss_mask.index(1)
        packed = pack_floats([*prompt, *np.minimum(log_probs + shift, 0.0).tolist()])
        found.append(msgspec.structs.replace(item, segments=(msgspec.structs.replace(segment, logprobs=packed),)))
    return found
