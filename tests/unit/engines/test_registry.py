"""What the registry of engines promises to everybody who asks it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from contracts.engines import EngineReplica
from contracts.errors import InvalidSettings
from engines.fitting import fitting, misfit
from engines.registry import FOLLOWED, KINDS, OWN, followed_of, kind_of, only_followed

ROW = EngineReplica(
    "one", "demo", "http://h:1", OWN, "eu", "serving", {"live": 3}, frozenset(), "i", "e", "d", 0.0, "r", "b"
)


def test_every_kind_has_its_parts() -> None:
    for name in KINDS:
        assert kind_of(name).wire.path.startswith("/")
        assert (kind_of(name).followed is None) == (name == OWN)
    for name in FOLLOWED:
        assert callable(importlib.import_module(followed_of(name).process).main)


def test_a_kind_that_is_not_here_is_refused_by_name() -> None:
    with pytest.raises(InvalidSettings, match=r"there is no engine 'tgi', only millrace and vllm$"):
        kind_of("tgi")
    with pytest.raises(InvalidSettings, match="serve on vLLM or on our own engine"):
        kind_of("sglang")
    with pytest.raises(InvalidSettings, match="follows its assignments itself"):
        followed_of(OWN)


def test_a_server_without_a_kind_is_of_the_only_one_and_refused_by_name_among_several() -> None:
    assert [only_followed()] == list(FOLLOWED)
    with pytest.raises(InvalidSettings, match="--engine-url does not say what its server is: add --engine one or two"):
        only_followed(("one", "two"))


def test_a_replica_of_a_kind_that_is_not_here_serves_nothing() -> None:
    assert fitting(ROW, "r", "b") == ROW
    found = fitting(ROW._replace(kind="sglang"), "r", "b")
    assert (found.status, found.slots) == ("unknown_kind", {})
    assert misfit(ROW._replace(kind="sglang"), "another", "b") == "another_run", "the run is looked at before the kind"


def test_the_names_are_read_without_the_parts() -> None:
    """The command line reads them at each start."""
    code = (
        "import sys, engines.registry; print(sorted({'httpx', 'pydantic', 'numpy', 'sqlalchemy'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 our own interpreter
    assert ran.stdout == "[]\n"
