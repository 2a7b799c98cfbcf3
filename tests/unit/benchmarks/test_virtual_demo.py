"""The demo in virtual time learns from what its users say, also from truncated answers."""

import json

import pytest

from benchmarks.virtual_demo.__main__ import main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("top_p", ["1.0", "0.9"])
def test_a_few_seconds_teach_something(top_p: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--seeds", "1", "--seconds", "25", "--delay", "1", "--temperature", "0.7", "--explore", "0", "--json"]
    assert main([*given, "--top-p", top_p]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["held_out"] > 0.7, "the base policy has .51"
    assert run["accepted_last"] > run["accepted_base"]
