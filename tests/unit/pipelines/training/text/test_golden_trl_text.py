"""Our losses of text and their gradients against trl's own SFT, DPO and KTO trainers, on the same text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from pipelines.training.learning.trainees import trainee_of
from pipelines.training.learning.whole_model import WholeModel
from pipelines.training.settings import TrainingSettings
from pipelines.training.text.samples import Kind, TextBatch, TextRow, TextSample, mismatched_rows, rows_of
from tests.tolerances import network_tolerance
from tests.unit.pipelines.training.builders import VOCABULARY, tiny_model

KINDS: tuple[Kind, ...] = ("target", "pair", "thumb")


def random_text(random: np.random.Generator, kind: Kind, **changes: Any) -> TextSample:
    """Random tokens. A pair begins alike, as an edit does."""

    def ids(least: int, most: int) -> tuple[int, ...]:
        return tuple(random.integers(1, VOCABULARY, random.integers(least, most)).tolist())

    common, rejected = ids(1, 4), None
    if kind == "pair":
        rejected = (*common, *ids(1, 6))
    fields: dict[str, Any] = {
        "key": str(random.integers(1 << 30)),
        "revision": 0,
        "kind": kind,
        "prompt_ids": ids(2, 8),
    }
    fields |= {"chosen_ids": (*common, *ids(1, 6)), "rejected_ids": rejected, "is_good": bool(random.integers(0, 2))}
    return TextSample(**(fields | changes))


def moved_trainee(max_tokens: int = 40) -> WholeModel:
    """Today's policy is another than the base."""
    trainee = trainee_of(tiny_model(2), TrainingSettings(max_tokens=max_tokens))
    with torch.no_grad():
        for parameter, other in zip(trainee.model.parameters(), tiny_model(1).parameters(), strict=True):
            parameter.copy_(other)
    return trainee


def trainer_of_trl(kind: Kind, folder: Path) -> Any:
    from datasets import Dataset  # type: ignore[import-untyped]  # noqa: PLC0415 takes seconds; without types
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer  # noqa: PLC0415 takes seconds

    vocabulary = {f"t{index}": index for index in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="t0")),  # noqa: S106 a token of text
        pad_token="t0",  # noqa: S106 as above
        eos_token="t1",  # noqa: S106 as above
    )
    options: dict[str, Any] = {
        "output_dir": str(folder), "use_cpu": True, "bf16": False, "report_to": [], "per_device_train_batch_size": 2,
        "activation_checkpointing": False, "disable_tqdm": True,
    }  # fmt: skip
    model = tiny_model(1).requires_grad_(requires_grad=True)
    shared = {"model": model, "processing_class": tokenizer}
    prompts = {"prompt": ["t2", "t3"]}
    if kind == "target":
        rows = Dataset.from_dict({**prompts, "completion": ["t4", "t5"]})
        return SFTTrainer(args=SFTConfig(**options), train_dataset=rows, **shared)
    if kind == "pair":
        rows = Dataset.from_dict({**prompts, "chosen": ["t4", "t5"], "rejected": ["t6", "t7"]})
        return DPOTrainer(ref_model=tiny_model(2), args=DPOConfig(**options), train_dataset=rows, **shared)
    rows = Dataset.from_dict({**prompts, "completion": ["t4", "t5"], "label": [True, False]})
    return KTOTrainer(ref_model=tiny_model(2), args=KTOConfig(**options), train_dataset=rows, **shared)


def padded(rows: list[TextRow], prefix: str = "") -> dict[str, torch.Tensor]:
    """trl's layout, built without any of our code."""
    width = max(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    ids, attention, completion = torch.zeros((3, len(rows), width), dtype=torch.long)
    for place, row in enumerate(rows):
        begin, end = len(row.prompt_ids), len(row.prompt_ids) + len(row.completion_ids)
        ids[place, :end] = torch.tensor([*row.prompt_ids, *row.completion_ids])
        attention[place, :end] = 1
        completion[place, begin:end] = 1
    return {f"{prefix}input_ids": ids, f"{prefix}attention_mask": attention, f"{prefix}completion_mask": completion}


def loss_of_trl(trainer: Any, samples: list[TextSample]) -> torch.Tensor:
    kind, rows = samples[0].kind, rows_of(samples)
    if kind == "target":
        inputs = padded(rows)
        inputs["labels"] = inputs["input_ids"].masked_fill(inputs.pop("completion_mask") == 0, -100)
    elif kind == "pair":
        inputs = padded(rows[::2] + rows[1::2])
    else:
        inputs = {**padded(rows), **padded(mismatched_rows(samples), "KL_")}
        inputs["label"] = torch.tensor([item.is_good for item in samples])
    return trainer.compute_loss(trainer.model, inputs)  # type: ignore[no-any-return]


# trl reads a name that transformers has given up.
@pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_each_loss_of_text_and_its_gradient_equal_trl(tmp_path: Path, kind: Kind) -> None:
    random = np.random.default_rng(5)
    samples = [random_text(random, kind) for _ in range(6)]
    trainer = trainer_of_trl(kind, tmp_path)
    expected = loss_of_trl(trainer, samples)
    expected.backward()  # type: ignore[no-untyped-call]
    trainee = moved_trainee()

    found = trainee.backward_text(TextBatch.of(samples), [])

    room = 10 * network_tolerance(trainee.model.config)
    assert found.losses.values == {kind: pytest.approx(expected.item(), abs=room)}
    for name, theirs in trainer.model.named_parameters():
        rounding = network_tolerance(trainee.model.config, 1.0, backward=True) * float(theirs.grad.abs().max())
        torch.testing.assert_close(
            dict(trainee.model.named_parameters())[name].grad, theirs.grad, atol=10 * rounding, rtol=0
        )
