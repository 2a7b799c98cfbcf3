"""Mutated, forged, replayed and wrong deltas: each is refused by its name, and those who attack would notice if not."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import WeightsRefused
from tests.adversary.forgeries.__main__ import MEMORY, all_kinds, main, run_attacks
from tests.adversary.forgeries.victims import Sabotage
from weights.replica.replica import Replica
from weights.replica.slots import Slot
from weights.stores.folder import FolderObjects
from weights.stores.opening import open_store_at
from weights.stores.store import WeightStore
from weights.versions.manifest import Chunk

pytestmark = pytest.mark.slow  # seconds, for what changes rarely: CI runs it

NUM_ATTACKS = 240


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if not MEMORY.is_dir():
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(dir=MEMORY))
    yield made
    shutil.rmtree(made)


def numbers_of(layer: str, num: int) -> list[int]:
    """Attacks of the kinds that are named so."""
    kinds = all_kinds()
    return [number for number in range(num * len(kinds)) if kinds[number % len(kinds)].name.startswith(layer)]


def test_nothing_is_applied_and_everything_is_refused_by_its_name(folder: Path) -> None:
    # Two of each kind, and more of the one that has several names for its refusals.
    numbers = {*range(NUM_ATTACKS), *numbers_of("signed: schema", 12)}
    figures = run_attacks(folder, sorted(numbers), seed=1, recover_every=7)

    assert figures["problems"] == []
    assert figures["applied"] == 0
    assert len(figures["kinds"]) == len(all_kinds()) <= NUM_ATTACKS / 2
    refused_by = {code for row in figures["kinds"].values() for code in (*row["codes"], *row["reader_codes"])}
    assert refused_by >= {
        "unsigned", "unknown_key", "bad_signature", "corrupt_manifest", "older_schema", "newer_schema", "unknown_codec", "wrong_run",
        "wrong_base", "broken_chain", "payload_hash", "payload_size", "corrupt_payload", "target_root", "corrupt_pointer",
        "wrong_pointer", "stale_pointer", "slot_damaged", "history_damaged",
    }  # fmt: skip


@pytest.mark.parametrize(
    "layer",
    [
        "manifest: of other weights",
        "replay: of another run",
        "pointer: an older",
        "signed: another target",
        "signed: a root",
    ],
)
def test_what_must_not_be_harmless_is_refused_every_time(folder: Path, layer: str) -> None:
    numbers = numbers_of(layer, 4)
    figures = run_attacks(folder, numbers, seed=2)

    assert figures["problems"] == []
    outcomes = [row["outcomes"] for name, row in figures["kinds"].items() if name.startswith(layer)]
    assert [list(outcome) for outcome in outcomes] == [["refused"]] * len(outcomes)
    assert sum(outcome["refused"] for outcome in outcomes) == len(numbers) > 3


def problems_with(folder: Path, layer: str, sabotage: Sabotage) -> dict[str, Any]:
    return run_attacks(folder, numbers_of(layer, 2), seed=1, sabotage=sabotage)


def test_a_store_that_takes_anybodys_versions_is_noticed(folder: Path) -> None:
    trusting = Sabotage(store_of=lambda world: open_store_at(world.folder / "store"))

    figures = problems_with(folder, "manifest: of other weights", trusting)

    assert figures["applied"] > 0
    assert not figures["good"]
    assert any("applied" in problem for problem in figures["problems"])


class Believer(Replica):
    """Whatever is refused for its root was meant well: it serves what it can find instead."""

    def bring(self, version: int, run: str | None = None) -> Slot:
        try:
            return super().bring(version, run)
        except WeightsRefused as error:
            if error.code == "target_root":
                super().bring(version - 2, run)
            raise


def test_a_replica_that_serves_something_else_after_a_refusal_is_noticed(folder: Path) -> None:
    figures = problems_with(folder, "signed: another target root", Sabotage(replica=Believer))

    assert figures["applied"] == 0
    assert any("replica: changed" in problem for problem in figures["problems"])


class Careless(WeightStore):
    """Says in its own words what is wrong."""

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        content = super().chunk(policy, chunk, start)
        return content + b"" if len(content) == chunk.num_bytes - start else content[: 1 // 0]


def test_an_error_without_a_name_is_noticed(folder: Path) -> None:
    careless = Sabotage(store_of=lambda world: Careless(FolderObjects(world.folder / "store"), world.keyring))

    figures = problems_with(folder, "chunk: truncated", careless)

    assert figures["applied"] == 0
    assert [problem for problem in figures["problems"] if "unnamed ZeroDivisionError" in problem]


def test_the_command_prints_a_table_and_says_with_its_status_what_it_found(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--attacks", "3", "--folder", str(folder)]) == 0

    printed = capsys.readouterr().out
    assert "payload_hash" in printed
    assert "applied 0, problems 0" in printed
    assert list(folder.iterdir()) == []
