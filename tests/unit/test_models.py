from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.models import KINDS, build_model


@pytest.mark.parametrize("kind", KINDS)
def test_a_built_model_is_a_checkpoint_that_transformers_loads(kind: str, tmp_path: Path) -> None:
    whole = build_model(kind, tmp_path / "whole")
    shards = build_model(kind, tmp_path / "shards", sharded=True)

    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (whole, shards)]

    assert len(list(shards.glob("*.safetensors"))) > len(list(whole.glob("*.safetensors"))) == 1
    ids = torch.tensor([AutoTokenizer.from_pretrained(whole)("A table for two")["input_ids"]])
    first, second = (model(input_ids=ids).logits for model in models)
    assert torch.equal(first, second)
