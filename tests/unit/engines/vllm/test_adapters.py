"""What a vLLM server must be before adapters are loaded into it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from contracts.errors import InvalidSettings
from engines.following.driver import ServerFacts
from engines.vllm.adapters import adapter_arguments, adapter_rank, check_base, check_facts
from engines.vllm.follow import with_adapters
from engines.vllm.settings import VllmSettings
from pipelines.training.settings import AdapterSettings
from runtime.settings import Settings, make_section
from runtime.settings_file import FILE_NAME
from tests.unit.weights.awkward_weights import tensor
from weights.tensors import root_of, to_bf16, write_safetensors

BASE_ROOT = "b" * 64


def test_a_server_is_checked_against_the_runs_adapter(tmp_path: Path) -> None:
    base, path = tmp_path / "base", tmp_path / FILE_NAME
    settings = Settings(home=tmp_path, run="r", policy="demo", base=str(base), tasks=(tmp_path / "t.toml",))
    base.mkdir()
    path.write_text("")
    (base / "config.json").write_text("{}")
    (base / "tokenizer.json").write_text("{}")
    without = ServerFacts(str(base), str(base), "float32", True, True, True, 20, False)
    check_facts(without, settings, "http://h")
    assert adapter_rank(settings.home) is None
    path.write_text("[training]\nadapter = { rank = 12, alpha = 32 }\n")
    assert adapter_rank(settings.home) == 12
    for facts, says in (
        (without, "was started without LoRA.*--enable-lora --max-lora-rank 16 --max-loras 7 --max-cpu-loras 9"),
        (without._replace(adapter_rank=8, num_adapters=7), "up to rank 8, this policy's has 12"),
        (without._replace(adapter_rank=16, num_adapters=4), "4 adapters at once, and there are 5 arms"),
    ):
        with pytest.raises(InvalidSettings, match=says):
            check_facts(facts, settings, "http://h")
    check_facts(without._replace(adapter_rank=16, num_adapters=5), settings, "http://h")
    path.write_text(path.read_text().replace("12", "1000"))
    with pytest.raises(InvalidSettings, match="'rank': 1000"):
        adapter_rank(settings.home)
    path.write_text("[training]\nadapter = 8\n")
    with pytest.raises(InvalidSettings, match=r"\[training\] adapter is 8; write adapter = \{ rank = 8 \}"):
        adapter_rank(settings.home)
    path.write_text("[training]\nadapter = {}\n")
    assert adapter_rank(settings.home) == AdapterSettings().rank


def test_the_checkpoint_under_the_adapters_is_version_0(tmp_path: Path) -> None:
    weights = {"embed.weight": tensor("BF16", np.ones((2, 2), "<u2"))}
    write_safetensors(tmp_path / "model.safetensors", weights)
    facts = ServerFacts(str(tmp_path), str(tmp_path), "float32", True, True, True, 20, False)
    check_base(facts, tmp_path, "compared before", "http://h")
    another = tmp_path / "another"
    another.mkdir()
    check_base(facts, another, root_of(weights), "http://h")
    wide = {"embed.weight": tensor("F32", np.ones((2, 2), "<f4"))}
    write_safetensors(another / "model.safetensors", wide)
    with pytest.raises(InvalidSettings, match="whose weights are not version 0"):
        check_base(facts, another, BASE_ROOT, "http://h")
    write_safetensors(tmp_path / "model.safetensors", {"wte.weight": weights["embed.weight"]})
    with pytest.raises(InvalidSettings, match=r"not named as those of the base policy, first 'embed\.weight'"):
        check_base(facts, another, BASE_ROOT, "http://h")
    write_safetensors(tmp_path / "model.safetensors", wide)
    rounds = facts._replace(dtype="bfloat16")
    check_base(rounds, another, root_of(to_bf16(wide)), "http://h")
    check_base(rounds, another, "of the same bits, published under other names", "http://h")
    with pytest.raises(InvalidSettings, match="version 0, under the adapters, has bfloat16"):
        check_base(facts, tmp_path, BASE_ROOT, "http://h")
    check_base(facts._replace(dtype="bfloat16"), tmp_path, BASE_ROOT, "http://h")


def test_one_server_serves_all_arms_whatever_the_slots() -> None:
    own = make_section(
        "[vllm]", VllmSettings, python=Path("/p"), slots=("live", "candidate", "canary"), arguments=("-x",)
    )
    found = with_adapters(own, 8)
    assert (found.slots, found.arguments) == (("live",), (*adapter_arguments(8, 5), "-x"))
    assert with_adapters(own.model_copy(update={"slots": ("live", "candidate", "live")}), 8).slots == ("live", "live")
    given = make_section("[vllm]", VllmSettings, urls=("http://a", "http://a"))
    assert (with_adapters(given, 8).urls, with_adapters(given, 8).slots) == (("http://a",), ("live",))
