from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InvalidSettings, WeightsRefused
from engines.following.process import HostCopy
from engines.vllm.follow import ServerProcess
from engines.vllm.launch import has_experts, make_plug_in, serve_command, serve_environment
from engines.vllm.settings import VllmSettings
from tests.unit.services.serving import wait_until
from tests.unit.weights.awkward_weights import version
from weights.codec.history import History
from weights.publish import publish_version
from weights.replica.replica import Replica
from weights.stores.opening import open_store_at
from weights.tensors import read_safetensors, root_of

SLEEPS = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


def server_in(folder: Path) -> ServerProcess:
    return ServerProcess(folder, lambda _port: SLEEPS, lambda lease: {"MILLRACE_VLLM_LEASE": str(lease)})


def test_a_server_outlives_the_object_and_is_found_again(tmp_path: Path) -> None:
    first = server_in(tmp_path / "a")
    assert first.address is None
    first.start()
    # A process that has only just begun shows no environment yet.
    wait_until(lambda: "up" in (tmp_path / "a" / "server.log").read_text())
    again = server_in(tmp_path / "a")
    assert again.address == first.address
    assert (tmp_path / "a" / "lease").exists()
    first.end()
    assert first.address is None
    assert again.address is None
    assert server_in(tmp_path / "a").address is None


def test_a_server_that_was_killed_is_gone_with_its_workers(tmp_path: Path) -> None:
    server = server_in(tmp_path)
    server.start()
    assert server.running is not None
    process = server.running.process
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert server.running is None


def test_another_process_with_the_same_number_is_not_taken_for_the_server(tmp_path: Path) -> None:
    server = server_in(tmp_path)
    server.start()
    assert server.running is not None
    record = (tmp_path / "server.json").read_text().replace(str(server.running.process), str(os.getpid()), 1)
    (tmp_path / "server.json").write_text(record)
    assert server_in(tmp_path).address is None
    server.end()


def test_a_record_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "server.json").mkdir()
    with pytest.raises(IsADirectoryError):
        server_in(tmp_path)


def test_the_command_asks_for_log_probs_of_what_was_sampled_from(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"text_config": {"num_experts": 8}}')
    settings = VllmSettings(python=Path("/env/bin/python"), arguments=("--max-num-seqs", "4"), max_model_len=64)
    command = serve_command(settings, "demo", tmp_path, port=8000, is_cpu=True)
    for words in (
        ["--logprobs-mode", "processed_logprobs"],
        ["--dtype", "float32"],
        ["--max-model-len", "64"],
        ["--served-model-name", "demo"],
    ):
        at = command.index(words[0])
        assert command[at : at + 2] == words
    assert {"--enforce-eager", "--enable-scale-out", "--enable-prompt-tokens-details"} <= set(command)
    assert command[-2:] == ["--max-num-seqs", "4"]
    assert "--enable-return-routed-experts" not in command, "vLLM has no way to record them on CPU"
    on_a_gpu = serve_command(settings, "demo", tmp_path, port=8000, is_cpu=False)
    assert "--enforce-eager" not in on_a_gpu
    assert "--enable-return-routed-experts" in on_a_gpu


@pytest.mark.parametrize(
    ("config", "found"), [('{"num_local_experts": 8}', True), ('{"num_experts": 1}', False), ("{}", False)]
)
def test_a_mixture_of_experts_is_known_by_its_config(tmp_path: Path, config: str, *, found: bool) -> None:
    (tmp_path / "config.json").write_text(config)
    assert has_experts(tmp_path) is found
    with pytest.raises(InvalidSettings, match=r"config\.json"):
        has_experts(tmp_path / "nothing")


def test_a_configuration_that_is_no_plain_file_is_refused_and_nothing_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InvalidSettings, match="no plain file"):
        has_experts(tmp_path)


def test_our_secrets_and_our_interpreter_stay_here(tmp_path: Path) -> None:
    own = {
        "PATH": "/bin",
        "PYTHONPATH": "/ours",
        "AWS_SECRET_ACCESS_KEY": "s",
        "MILLRACE_ENGINE_KEY": "k",
        "HOME": "/root",
    }
    found = serve_environment(own, tmp_path, tmp_path / "lease", "the-key", VllmSettings(python=Path("/p")))
    assert found["PYTHONPATH"] == str(tmp_path)
    assert found["VLLM_API_KEY"] == "the-key"
    assert found["MILLRACE_VLLM_LEASE"] == str(tmp_path / "lease")
    assert not {"AWS_SECRET_ACCESS_KEY", "MILLRACE_ENGINE_KEY"} & found.keys()
    assert found["PATH"] == "/bin"


def test_the_cores_are_divided_among_the_servers(tmp_path: Path) -> None:
    """Two servers with two threads each on two cores spin against each other: 19 tokens/s instead of 224 were seen."""

    def threads(**more: Any) -> int:
        settings = VllmSettings(python=Path("/p"), **more)
        return int(serve_environment({}, tmp_path, tmp_path / "lease", "k", settings)["OMP_NUM_THREADS"])

    cores = len(os.sched_getaffinity(0))
    assert threads() == max(1, cores // 2)
    assert threads(slots=("live",)) == cores
    assert threads(slots=("live",) * (2 * cores)) == 1
    assert threads(threads=3) == 3


def test_the_plug_in_is_three_packages_and_nothing_else(tmp_path: Path) -> None:
    for _ in range(2):
        folder = make_plug_in(tmp_path / "plug_in")
    assert sorted(path.name for path in folder.iterdir()) == ["contracts", "engines", "weights"]
    assert (folder / "engines" / "vllm" / "server" / "receiver.py").is_file()


def test_settings_need_an_interpreter_or_addresses() -> None:
    with pytest.raises(ValueError, match="python is missing"):
        VllmSettings()
    with pytest.raises(ValueError, match="1 servers for 2 slots"):
        VllmSettings(urls=("http://127.0.0.1:1",))


def test_a_version_is_decoded_once_and_stays_as_long_as_a_server_may_need_it(tmp_path: Path) -> None:
    store, history = open_store_at(tmp_path / "store"), History()
    for number in range(4):
        publish_version(
            store, policy="demo", run="run", version=number, parent=number - 1 if number else None,
            base=version(number - 1) if number else None, target=version(number), step=number, epoch=0, num_samples=1,
            created_at=0.0, history=history,
        )  # fmt: skip
    copy = HostCopy(Replica(tmp_path / "replica", store, "demo"), "run")
    live, candidate = tmp_path / "live", tmp_path / "candidate"
    live.mkdir()
    candidate.mkdir()
    first = copy.file_of(0, root_of(version(0)), None, live)
    for number in (1, 2, 3):
        file = copy.file_of(number, None, "run", candidate)
        assert root_of(read_safetensors(file.path)) == file.root == root_of(version(number))
    assert len(list(candidate.iterdir())) == 2
    assert root_of(read_safetensors(first.path)) == first.root
    same = copy.file_of(3, None, "run", live)
    assert same.path.stat().st_ino == file.path.stat().st_ino, "both servers map the same file"
    with pytest.raises(WeightsRefused, match="was assigned") as caught:
        copy.file_of(3, "0" * 64, "run", live)
    assert caught.value.code == "wrong_root"
    copy.close()
