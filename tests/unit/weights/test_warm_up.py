"""After the warm-up a publisher, an engine's stager and a replica compile nothing more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weights.codec import coder, kernels
from weights.codec.history import History
from weights.publish import publish_version
from weights.reader import advance_history
from weights.replica.replica import Replica
from weights.stores.opening import open_store_at
from weights.tensors import Tensor, Tensors
from weights.warm_up import warm_up

POLICY = "warm"
ROOT = Path(__file__).parents[3]


LOOPS: dict[str, Any] = {
    name: loop for module in (kernels, coder) for name, loop in vars(module).items() if hasattr(loop, "signatures")
}


def compiled() -> dict[str, int]:
    """By loop, for how many kinds of arguments it was compiled."""
    return {name: len(loop.signatures) for name, loop in LOOPS.items()}


def policy() -> Tensors:
    draw = np.random.default_rng(3)
    shapes = {"plain": (300, 200), "rows": (200, 300), "still": (50, 50), "vector": (70,)}
    words = {
        name: (draw.normal(0, 0.02, shape).astype("<f4").view("<u4") >> 16).astype("<u2")
        for name, shape in shapes.items()
    }
    return {name: Tensor("BF16", shapes[name], array.reshape(-1).view(np.uint8)) for name, array in words.items()}


def moved(tensors: Tensors, seed: int) -> Tensors:
    """One tensor here and there, one by the signs of rows and columns, one by a single weight, one not at all."""
    draw = np.random.default_rng(seed)
    target = {name: tensor._replace(data=tensor.data.copy()) for name, tensor in tensors.items()}
    plain, rows = (target[name].data.view("<u2").reshape(target[name].shape) for name in ("plain", "rows"))
    plain += (draw.random(plain.shape) < 0.02).astype("<u2")
    signs = np.outer(*(draw.choice([1, -1], size) for size in rows.shape)) * np.where(rows >> 15 == 1, -1, 1)
    rows += (signs * (draw.random(rows.shape) < 0.11)).astype("<u2")
    target["vector"].data.view("<u2")[7] ^= 1
    return target


def work(folder: Path) -> None:
    """Publish, keep a replica, stage."""
    store, history, weights = open_store_at(folder / "store"), History(), [policy()]
    for version in range(4):
        weights.append(moved(weights[-1], version))
        publish_version(
            store, policy=POLICY, run="warm", version=version, parent=version - 1 if version else None,
            base=weights[-2] if version else None, target=weights[-1], step=version, epoch=0, num_samples=0,
            created_at=0.0, history=history,
        )  # fmt: skip
    with Replica(folder / "replica", store, POLICY) as replica:
        for version in (0, 1, 3):
            replica.bring(version)
    tensors, known = store.load_state(POLICY, 1)
    for hop in store.stage_onto(POLICY, 3, 1, tensors, known):
        advance_history(known, hop.manifest, hop.staged.moves)


def main(folder: Path) -> None:
    """What was compiled before work, and after."""
    warm_up()
    before = compiled()
    work(folder)
    sys.stdout.write(f"\n{json.dumps([before, compiled()])}")


@pytest.mark.slow
def test_nothing_is_left_to_compile(tmp_path: Path) -> None:
    # A process of its own: tests before this one have compiled what they needed.
    ran = subprocess.run(  # noqa: S603 our own module
        [sys.executable, "-m", __name__, str(tmp_path)], cwd=ROOT, check=True, capture_output=True, text=True
    )
    before, after = json.loads(ran.stdout.splitlines()[-1])
    assert before["add_levels"] > 0, "factors were tried"
    assert before["decode_block"] == 2, "with factors and without"
    assert before["find_contexts"] > 0, "states told how soon a weight moves"
    assert after == before


if __name__ == "__main__":
    main(Path(sys.argv[1]))
