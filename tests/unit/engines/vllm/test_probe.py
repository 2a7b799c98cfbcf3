"""What an adapter's log-probs show, and the trainer's beside them in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.errors import WeightsRefused
from engines.vllm.probe import Probed, check_binding, tolerance_of
from tests.worlds.stores import POLICY, Folder, signer
from tests.worlds.versions import keyring
from weights.probe import ProbeAnswers, Scores, probe_prompts, read_probe, write_probe

OURS, OTHER = signer(2), signer(3)
ROOT = "a" * 64


def scores(log_prob: float) -> Scores:
    return [{token: log_prob - token for token in prompt[:3]} for prompt in probe_prompts(50)]


def answers(base: float = -1.0, adapted: float = -2.0) -> ProbeAnswers:
    return ProbeAnswers(
        root=ROOT, dtype="float32", prompts=probe_prompts(50), base=scores(base), adapted=scores(adapted)
    )


@pytest.mark.parametrize(
    ("base", "adapted", "code"),
    [
        (-1.0, -2.0, None),
        (-1.0, -2.09, None),
        (-1.0, -2.11, "adapter_disagrees"),
        (-1.0, -1.5, "adapter_disagrees"),
        (-1.02, -2.13, None),
        (-1.02, -2.15, "adapter_disagrees"),
        (-1.0, -1.0, "adapter_unbound"),
    ],
)
def test_an_adapter_differs_from_its_base_and_agrees_with_the_trainer(
    base: float, adapted: float, code: str | None
) -> None:
    """Within .1, and what rounding does to the base twice."""
    found = Probed(scores(base), scores(adapted), scores(base))
    if code in {None, "adapter_disagrees"}:
        check_binding(found, "demo@v1", None, 0.1)
    if code is None:
        check_binding(found, "demo@v1", answers(), 0.1)
        return
    with pytest.raises(WeightsRefused) as refused:
        check_binding(found, "demo@v1", answers(), 0.1)
    assert refused.value.code == code


def test_the_tolerance_grows_with_the_dtype_and_the_length_of_the_computation() -> None:
    demo = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 512}
    large = {"num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288}
    assert 1e-5 < tolerance_of(demo, "float32", "float32") < tolerance_of(large, "float32", "float32") < 1e-3
    assert tolerance_of(large, "float32", "float32") < tolerance_of(large, "float32", "bfloat16") < 0.6


def test_the_trainers_answers_are_signed_for_one_policy_and_one_version(tmp_path: Path) -> None:
    store = Folder(tmp_path / "store").open(None)
    assert read_probe(store, POLICY, ROOT, keyring(OURS)) is None
    write_probe(store, POLICY, answers(), OURS)
    found = read_probe(store, POLICY, ROOT, keyring(OURS))
    assert found is not None
    assert msgspec.structs.replace(found, key=None, signature=None) == answers()
    write_probe(store, "other", answers(), OURS)
    path = tmp_path / "store" / POLICY / "probes" / f"{ROOT}.json"
    path.with_name(f"{'b' * 64}.json").write_bytes(path.read_bytes())
    path.write_bytes((tmp_path / "store" / "other" / "probes" / path.name).read_bytes())
    junk: list[str] = []
    store.on_junk = lambda _place, reason: junk.append(reason.code)
    for root, trusted, code in (
        (ROOT, OURS, "bad_signature"),
        (ROOT, OTHER, "unknown_key"),
        ("b" * 64, OURS, "corrupt_probe"),
    ):
        assert read_probe(store, POLICY, root, keyring(trusted)) is None, "a version is believed for its manifest"
        assert junk.pop() == code


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "float8"},
        {"adapted": [*scores(-2.0)[:-1], {}]},
        {"prompts": [*probe_prompts(50)[:-1], []]},
        {"base": []},
    ],
)
def test_answers_that_nobody_can_compare_with_are_none(tmp_path: Path, change: dict[str, Any]) -> None:
    store = Folder(tmp_path / "store").open(None)
    write_probe(store, POLICY, msgspec.structs.replace(answers(), **change), OURS)
    junk: list[str] = []
    store.on_junk = lambda _place, reason: junk.append(reason.code)
    assert read_probe(store, POLICY, ROOT, keyring(OURS)) is None
    assert junk == ["corrupt_probe"]
    path = tmp_path / "store" / POLICY / "probes" / f"{ROOT}.json"
    path.write_bytes(b" " * 2**17)
    assert read_probe(store, POLICY, ROOT, keyring(OURS)) is None
    assert len(junk) == 2, "too large to be read"
