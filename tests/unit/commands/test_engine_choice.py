from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commands.engines import OWN, VLLM_PYTHON, choose_engine
from contracts.errors import InvalidSettings


def test_our_engine_is_the_default() -> None:
    assert choose_engine("millrace", None, 2) is OWN
    assert OWN.has_own
    assert (OWN.workers, dict(OWN.sections), OWN.limits()) == ((), {}, [])


def test_vllm_has_a_server_for_each_slot() -> None:
    chosen = choose_engine("vllm", Path(sys.executable), 3)
    assert chosen.vllm is not None
    assert chosen.vllm.slots == ("live", "candidate", "live")
    assert chosen.workers == ("vllm",)
    assert not chosen.has_own
    assert chosen.limits() == []


def test_one_replica_is_named_as_a_smaller_ability() -> None:
    chosen = choose_engine("vllm", Path(sys.executable), 1)
    assert chosen.vllm is not None
    assert chosen.vllm.slots == ("live",)
    (limit,) = chosen.limits()
    assert "cannot be gated" in limit


def test_an_interpreter_that_is_not_there_and_another_kind_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidSettings, match="make vllm"):
        choose_engine("vllm", tmp_path / "python", 2)
    monkeypatch.setenv(VLLM_PYTHON, str(tmp_path / "from the environment"))
    with pytest.raises(InvalidSettings, match="from the environment"):
        choose_engine("vllm", None, 2)
    with pytest.raises(InvalidSettings, match="--engine is millrace or vllm"):
        choose_engine("triton", None, 2)
