"""Which engines the options of `up` start, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commands.engines import choose_engine
from commands.supervisor import replica_names
from commands.up import listen
from contracts.errors import InvalidSettings

PYTHON = Path(sys.executable)
URLS = ("http://127.0.0.1:8001", "http://127.0.0.1:8002", "http://127.0.0.1:8003")


def test_our_engine_alone_in_any_number() -> None:
    assert choose_engine("millrace", None, 2).num_own == 1
    assert choose_engine("millrace", None, 2, 3).num_own == 3
    with pytest.raises(InvalidSettings, match="--engines 0 leaves no engine"):
        choose_engine("millrace", None, 2, 0)


def test_vllm_alone_or_beside_ours() -> None:
    alone, mixed = choose_engine("vllm", PYTHON, 3), choose_engine("vllm", PYTHON, 1, 2)
    assert (alone.num_own, alone.workers) == (0, ("vllm",))
    assert alone.vllm is not None
    assert alone.vllm.slots == ("live", "candidate", "live")
    assert (mixed.num_own, mixed.limits()) == (2, []), "ours has a candidate slot"
    assert choose_engine("vllm", PYTHON, 1).limits() != []


def test_running_servers_are_followed() -> None:
    chosen = choose_engine("vllm", None, 2, urls=URLS)
    assert chosen.vllm is not None
    assert (chosen.vllm.urls, chosen.vllm.slots) == (URLS, ("live", "candidate", "live"))
    assert chosen.num_own == 0
    assert choose_engine("millrace", None, 2, urls=URLS[:1]).num_own == 1, "beside ours"


def test_each_replica_of_the_engine_has_a_port_of_its_own() -> None:
    sockets = listen(0, num_engines=3)
    assert list(sockets) == ["web", *replica_names("engine", 3)] == ["web", "engine", "engine-2", "engine-3"]
    assert len({listening.getsockname()[1] for listening in sockets.values()}) == 4
    for listening in sockets.values():
        listening.close()
