"""Every causal language model of the pinned transformers: whether its checkpoint's names can be published."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from contracts.errors import WeightsRefused
from policy.conversion import conversion_of

REFUSED = {"deepseek_v4": "wrong_dtype"}
"""Its router has a table of integers."""


@pytest.mark.slow
def test_the_conversion_of_every_architecture_is_a_rearrangement_or_refused_by_name() -> None:
    refused, num_followed = {}, 0
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = AutoConfig.for_model(kind)
            config.num_hidden_layers = 2
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config)
        except Exception:  # noqa: BLE001, S112 some have no usable default configuration
            continue
        try:
            conversion_of(model)
            num_followed += 1
        except WeightsRefused as error:
            refused[kind] = error.code
    assert refused == REFUSED
    assert num_followed >= 170
