"""What a checkpoint's headers say, and which card a device means."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from commands.room import fit_table
from contracts.errors import InvalidSettings
from contracts.memory.training import USUAL, require_card
from engines.cards import card_of, free_memory, memory_limits, read_shape
from policy.adapter import Adapter, all_linear, linear_layers
from tests.command_line import run_here
from tests.models import build_model, tiny_model
from weights.adapters import AdapterConfig


def test_the_containers_limit_bounds_the_memory_that_is_left(tmp_path: Path) -> None:
    for name, text in (("v2", "max\n"), ("v1", "5000000000\n")):
        (tmp_path / name).write_text(text)
    assert list(memory_limits(tmp_path / name for name in ("v2", "v1", "none"))) == [5_000_000_000]
    assert free_memory([10**6]) < 0, "this process has more"
    assert 10**6 < free_memory([]) == pytest.approx(free_memory([2**62]), rel=0.5)


def write_headers(folder: Path, **config: object) -> Path:
    """A checkpoint of 16 GB that takes a page of the disk: its weights are a hole."""
    known = {"num_hidden_layers": 36, "hidden_size": 4096, "vocab_size": 151_936}
    (folder / "config.json").write_text(json.dumps(known | config))
    shapes = {"model.embed_tokens.weight": (151_936, 4096), "lm_head.weight": (151_936, 4096)}
    sizes = {
        "q": (4096, 4096),
        "k": (1024, 4096),
        "v": (1024, 4096),
        "o": (4096, 4096),
        "gate": (12_288, 4096),
        "up": (12_288, 4096),
    }
    for layer in range(36):
        named = {**sizes, "down": (4096, 12_288)}.items()
        shapes |= {f"model.layers.{layer}.{name}_proj.weight": shape for name, shape in named}
    header, end = {}, 0
    for name, (rows, columns) in shapes.items():
        header[name] = {
            "dtype": "BF16",
            "shape": [rows, columns],
            "data_offsets": [end, end := end + 2 * rows * columns],
        }
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return folder


def test_doctor_says_what_fits_from_headers_alone(tmp_path: Path) -> None:
    folder = write_headers(tmp_path)
    assert (folder / "model.safetensors").stat().st_blocks * 512 < 2**20
    told = run_here("doctor", "--policy", str(folder), "--home", str(tmp_path / "none"), "--card", "24", "--card", "80")
    assert told.returncode == 0, told.stderr
    assert (
        "8.19 billion parameters, 36 layers, width 4096, vocabulary 151936, no experts; 252 linear maps: 36 x q_proj 4096 to 4096"
        in told.stdout
    )
    rows = {
        line.split("  ")[0]: re.findall(r"fits|no", line.split(",", 1)[1])
        for line in told.stdout.splitlines()
        if "{ rank" in line or "masters =" in line
    }
    assert rows["LoRA, rank 8"][:2] == ["no", "fits"]
    assert "24 GB: adapter = { rank = 8, alpha = 32 } and max_tokens = 2048; adapter = { rank = 32" in told.stdout
    assert '80 GB: masters = "host"; adapter = { rank = 8, alpha = 32 }; ' in told.stdout
    small = run_here("doctor", "--policy", str(folder), "--card", "12")
    assert (small.returncode, "12 GB: no way of training fits" in small.stdout) == (1, True)
    assert "add --policy FOLDER" in run_here("doctor", "--card", "12").stderr


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_peft_makes_as_many_weights(kind: str, tmp_path: Path) -> None:
    """Of a mixture the attention alone: peft's `all-linear` would adapt experts and routers too."""
    peft = pytest.importorskip("peft")
    shape = read_shape(build_model(kind, tmp_path, sharded=True))
    targets = "all-linear" if kind == "qwen3" else sorted({linear.kind for linear in shape.adapted})
    chosen = peft.LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM")
    made = peft.inject_adapter_in_model(chosen, tiny_model(kind))
    found = [weight.numel() for name, weight in made.named_parameters() if re.search("lora_[AB]", name)]
    assert sum(found) == shape.adapter_weights(4) > 0
    assert len(found) == 2 * len(shape.adapted)


def test_the_adapter_of_a_mixture_leaves_its_experts_out(tmp_path: Path) -> None:
    shape = read_shape(build_model("qwen3_moe", tmp_path, sharded=True))
    model = tiny_model("qwen3_moe")
    config = AdapterConfig(rank=4, alpha=32.0, targets=all_linear(model), base_root="")
    found = dict(Adapter(model, config, dtype=torch.float32).named_parameters())
    assert sum(weight.numel() for weight in found.values()) == shape.adapter_weights(4) > 0


def test_a_model_without_linear_layers_is_told_before_a_start_what_the_trainer_says(tmp_path: Path) -> None:
    shape, model = read_shape(build_model("gpt2", tmp_path, sharded=True)), tiny_model("gpt2")
    with pytest.raises(InvalidSettings) as trainer:
        linear_layers(model, all_linear(model))
    with pytest.raises(InvalidSettings) as before:
        require_card(shape, {"adapter": {}}, 10**12, "cuda")
    assert before.value.message == trainer.value.message
    assert {(each.num_in, each.num_out) for each in shape.linears if each.kind == "c_fc"} == {(64, 256)}
    *_, said, fits = fit_table(shape, USUAL, [24.0])
    assert said == trainer.value.message
    assert fits == '24 GB: masters = "device"; masters = "host"'


@pytest.mark.parametrize(("content", "says"), [("[]", "is a list"), ("{", "cannot be read")])
def test_a_configuration_that_is_no_object_is_refused(content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InvalidSettings, match=says):
        read_shape(tmp_path)


def test_a_device_is_a_card_among_the_visible_ones() -> None:
    assert card_of("cuda", {}) == "0"
    assert card_of("cuda:1", {"CUDA_VISIBLE_DEVICES": "4,GPU-a"}) == "GPU-a"
    assert card_of("cuda:2", {"CUDA_VISIBLE_DEVICES": "4"}) == "2"
