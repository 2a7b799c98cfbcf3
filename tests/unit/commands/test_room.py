"""Whether a policy fits into this machine, and what a start says if it does not."""

from __future__ import annotations

import json
import runpy
import socket
from contextlib import nullcontext
from pathlib import Path

import pytest

from commands import room
from commands.room import MachineRoom, MemoryNeed, memory_need, require_room, shortage
from commands.up import listen
from contracts.checkpoints import CheckpointReport
from contracts.errors import InvalidSettings
from tests.each_case import each_case
from tests.forked import ended, start
from tests.models import BASE

GIB = 2**30
BILLION = CheckpointReport(num_weights=10**9)
"""On CPU the engine takes 15 bytes per weight with two slots, the trainer 27, and three processes two GiB."""


def test_memory_grows_with_weights_and_cache() -> None:
    small, large = CheckpointReport(num_weights=10**9), CheckpointReport(num_weights=8 * 10**9)
    assert memory_need(large, "cpu").trainer_peak - memory_need(small, "cpu").trainer_peak == 27 * 7 * 10**9
    assert memory_need(large, "cuda").engine < memory_need(large, "cpu").engine
    cached = CheckpointReport(num_weights=10**9, cache_elements_per_token=1000)
    assert memory_need(cached, "cuda").engine - memory_need(small, "cuda").engine == 2 * 16_384 * 1000 * 2


@each_case(
    ("room", "device", "more", "says"),
    [
        (MachineRoom(42 * GIB, 90 * GIB), "cpu", {}, ""),
        (MachineRoom(40 * GIB, 90 * GIB), "cpu", {}, "needs 41.2 GiB of memory (engine 14.8 GiB, trainer 25.8 GiB"),
        (MachineRoom(42 * GIB, 90 * GIB), "cpu", {"num_engines": 2}, "needs 56.0 GiB of memory"),
        (MachineRoom(42 * GIB, 90 * GIB), "cpu", {"num_slots": 3}, "needs 45.0 GiB of memory"),
        (MachineRoom(42 * GIB, 24 * GIB), "cpu", {}, "needs 24.5 GiB of disk"),
        (MachineRoom(42 * GIB, 90 * GIB, 1 * GIB), "cuda", {}, ""),
        (MachineRoom(16 * GIB, 90 * GIB), "cuda", {"trainer": 2 * GIB}, ""),
        (MachineRoom(16 * GIB, 90 * GIB, None), "cuda", {}, "needs 16.9 GiB of memory"),
    ],
)
def test_what_does_not_fit_is_said_with_what_there_is(
    room: MachineRoom, device: str, more: dict[str, int], says: str
) -> None:
    lack = shortage(BILLION, device, room, **more)
    assert says in lack
    assert bool(lack) is bool(says)


def test_an_adapter_on_a_cpu_counts_the_base_that_computes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "room_here", lambda *_: MachineRoom(22 * GIB, 90 * GIB))
    for training in ({"adapter": {"rank": 8}}, {}):
        with nullcontext() if training else pytest.raises(InvalidSettings, match=r"trainer 25\.8 GiB"):
            require_room(BILLION, BASE, tmp_path, "cpu", num_engines=1, num_slots=2, training=training)


def test_our_engine_on_a_gpu_is_a_process_beside_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho $MEBIBYTES\n")
    (tmp_path / "nvidia-smi").chmod(0o755)

    def up(mebibytes: int) -> None:
        monkeypatch.setenv("MEBIBYTES", str(mebibytes))
        report = CheckpointReport(num_weights=10**6)
        require_room(report, BASE, tmp_path, "cuda", num_engines=1, num_slots=2, training={})

    up(1400)
    with pytest.raises(
        InvalidSettings, match=r"takes 0\.7 GB beside at least 0\.6 GB of engines, and cuda has 1\.0 GB"
    ):
        up(1000)


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidSettings, match=rf"port {port} of feedback cannot be used .*--port"):
            listen(port - 2, split=True)


@pytest.mark.slow
def test_the_trainer_needs_the_memory_that_doctor_names(tmp_path: Path) -> None:
    """Measured on a Llama of 17 million weights, in a process of its own."""
    output = tmp_path / "measured.json"
    assert ended(start(runpy.run_module, "tests.unit.commands.trainer_memory", None, "__main__", output=output)) == 0
    measured = json.loads(output.read_text())
    bare = MemoryNeed(*memory_need(CheckpointReport(), "cpu"))
    named = memory_need(CheckpointReport(num_weights=measured["num_weights"]), "cpu")
    assert 0.6 < measured["resident"] / (named.trainer - bare.trainer) <= 1.0
    assert 0.6 < measured["peak"] / (named.trainer_peak - bare.trainer_peak) <= 1.0
