"""The worker's side of `reasoning_gym`: datasets by seed, and their own scorers."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from examples.verifiers.reasoning_gym_guard import guard


def worker(config: Mapping[str, Any]) -> Callable[[Mapping[str, str | None]], list[Any]]:
    """See `rewards.verifiers.referee`.

    Raises:
        ValueError: there is no such dataset, or it does not accept these options.
    """
    import reasoning_gym  # type: ignore[import-untyped]  # noqa: PLC0415 an optional extra
    from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]  # noqa: PLC0415 as above

    guard()
    if config["dataset"] not in DATASETS:
        close = difflib.get_close_matches(config["dataset"], DATASETS, n=3) or sorted(DATASETS)[:10]
        raise ValueError(f"reasoning-gym has no dataset of this name; there are {', '.join(close)}")

    @lru_cache(maxsize=8)
    def entries(seed: int, size: int) -> Any:
        return reasoning_gym.create_dataset(config["dataset"], seed=seed, size=size, **config["options"])

    entries(config["seed"], config["size"])

    @lru_cache(maxsize=1024)
    def entry_of(reference: str) -> tuple[Any, dict[str, Any]]:
        named = json.loads(reference)
        if not isinstance(named, dict) or named.get("dataset", config["dataset"]) != config["dataset"]:
            raise ValueError(f"it is not an entry of {config['dataset']}")
        dataset = entries(int(named.get("seed", config["seed"])), int(named.get("size", config["size"])))
        if "index" not in named:
            if not {"question", "answer", "metadata"} <= named.keys():
                raise ValueError('it is neither {"index": number} nor an entry with question, answer and metadata')
            return dataset, named
        index = named["index"]
        if not isinstance(index, int) or not 0 <= index < len(dataset):
            raise ValueError(f"index {index!r} is not in 0 to {len(dataset) - 1}; set size in the config")
        return dataset, dataset[index]

    return lambda item: _judged(item, entry_of)


def _judged(item: Mapping[str, str | None], entry_of: Callable[[str], tuple[Any, dict[str, Any]]]) -> list[Any]:
    try:
        dataset, entry = entry_of(item["reference"] or "")
        own = entry["answer"]
        if item["answer"] is None or isinstance(own, str):
            dataset.score_answer(own, entry)
    except Exception as error:  # noqa: BLE001 datasets raise any exception on a foreign entry
        return ["bad_reference", None, f"metadata.reference: {type(error).__name__}: {error}"]
    if item["answer"] is None:
        return ["scored", 1.0, ""]
    try:
        value = float(dataset.score_answer(item["answer"], entry))
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # noqa: BLE001 it just scored its own answer, so this answer is the problem
        return ["scored", 0.0, f"the scorer cannot read the answer: {type(error).__name__}: {error}"]
    if not math.isfinite(value) or not 0.0 <= value <= 1.0:
        return ["broken", None, f"the scorer answered {value!r}"]
    return ["scored", value, "" if value else "the scorer says no"]
