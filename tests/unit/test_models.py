from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.models import build_model


def test_a_built_model_is_a_checkpoint_that_transformers_loads(tmp_path: Path) -> None:
    """One kind of them; tests/unit/policy/test_conversion.py loads all."""
    whole = build_model("qwen3_moe", tmp_path / "whole")
    shards = build_model("qwen3_moe", tmp_path / "shards", sharded=True)

    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for folder in (whole, shards)]

    assert len(list(shards.glob("*.safetensors"))) > len(list(whole.glob("*.safetensors"))) == 1
    ids = torch.tensor([AutoTokenizer.from_pretrained(whole)("A table for two")["input_ids"]])
    first, second = (model(input_ids=ids).logits for model in models)
    assert torch.equal(first, second)
