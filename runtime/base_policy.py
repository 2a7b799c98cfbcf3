"""The fingerprint of a base policy without its weights: equal wherever model and tokenizer are; "" without a config.json."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

from contracts.files import read_small

_DIFFERS_HARMLESSLY = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")
_FILES = ("tokenizer.json",)


def fingerprint(base: str | Path) -> str:
    """Of config.json without what depends on where and by whom it was saved, and of tokenizer.json."""
    folder = Path(base)
    try:
        hashed = blake2b(json.dumps(model_of(folder), sort_keys=True).encode(), digest_size=12)
        for name in _FILES:
            hashed.update(read_small(folder / name, 2**28))
    except (OSError, ValueError, AttributeError, RecursionError):
        return ""  # a hub id, or a folder that `up` would refuse: nothing can be said
    return hashed.hexdigest()


def model_of(folder: Path) -> dict[str, Any]:
    """What config.json says of the model itself. Raises OSError, ValueError or AttributeError if it says nothing."""
    config = json.loads(read_small(folder / "config.json"))
    return {name: value for name, value in config.items() if name not in _DIFFERS_HARMLESSLY}
