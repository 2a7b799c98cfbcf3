"""What is wrong with a checkpoint beside its architecture: its folder, the names of its tensors, its numbers, its ends of answers.

In: files of the checkpoint. Out: `WeightsRefused`, whose message says what to give instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from contracts.errors import WeightsRefused
from contracts.files import read_small
from weights.tensors import INDEX_FILE, SINGLE_FILE, Tensor, words_of

_WRAPPERS = {
    "_orig_mod.": ("torch.compile", "save the model inside, `model._orig_mod.save_pretrained(...)`"),
    "_fsdp_wrapped_module.": ("FSDP", "save a full state dict of FSDP, which has plain names"),
    "_checkpoint_wrapped_module.": ("activation checkpointing", "save the model inside"),
    "base_model.model.": ("peft", "save it merged, `model.merge_and_unload().save_pretrained(...)`"),
    "module.": ("DistributedDataParallel or DeepSpeed", "save the model inside, `model.module.save_pretrained(...)`"),
}
"""By what they write before names: what wraps models so, and how to save without it. The last two only begin a name."""
_ONLY_FIRST = ("base_model.model.", "module.")
_NOT_FINITE = {"BF16": (0x7FFF, 0x7F80), "F16": (0x7FFF, 0x7C00), "F32": (0x7FFF_FFFF, 0x7F7F_8000)}
"""By dtype: the bits without the sign, and from where on they are no finite number once rounded to BF16."""
_CHUNK = 2**18
"""Elements that are looked at together; they stay in a cache of the CPU, so that a disk is slower than the check."""


def check_folder(folder: Path) -> None:
    """Whether the folder itself holds a whole model.

    Raises WeightsRefused: `adapter`: it holds an adapter of peft; `wrong_folder`: the model is in a folder inside.
    """
    has_weights = _has_weights(folder)
    if not has_weights and (folder / "adapter_config.json").is_file():
        adapter = _settings(folder / "adapter_config.json")
        base = adapter.get("base_model_name_or_path") or "its base, which adapter_config.json does not name"
        raise WeightsRefused(
            "adapter",
            f"{folder} holds an adapter of peft ({adapter.get('peft_type', 'unknown')}) for {base}, and no model of its own: merge it "
            f"into its base and give the merged folder: python -c 'from peft import AutoPeftModelForCausalLM as Model; "
            f'Model.from_pretrained("{folder}").merge_and_unload().save_pretrained("MERGED")\', then copy the tokenizer and the chat '
            "template of the base into MERGED",
        )
    if has_weights and (folder / "config.json").is_file():
        return
    inside = sorted(path.parent for path in folder.glob("*/config.json"))
    if whole := [path for path in inside if _has_weights(path)]:
        raise WeightsRefused("wrong_folder", f"{folder} holds no model, but {whole[-1]} does: give that folder instead")
    if inside:
        raise WeightsRefused(
            "wrong_folder",
            f"{folder} holds no weights in safetensors, and {inside[-1]} only the configuration: join the shards of the training "
            f"first and give the result, with verl: python -m verl.model_merger merge --backend fsdp --local_dir {folder} "
            "--target_dir MERGED",
        )


def check_names(names: Iterable[str]) -> None:
    """Raises WeightsRefused, `wrapped_names`, if tensors are named as in a wrapper of the model."""
    every = sorted(names)
    for prefix, (wrapper, remedy) in _WRAPPERS.items():
        found = [name for name in every if name.startswith(prefix) or (prefix in name and prefix not in _ONLY_FIRST)]
        if found:
            raise WeightsRefused(
                "wrapped_names",
                f"{len(found)} of {len(every)} tensors have `{prefix}` in their names, first {found[0]}: a model was saved while "
                f"{wrapper} wrapped it; {remedy}, or rename the tensors as docs/models.md shows (Names of wrappers)",
            )


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Read every weight once, in the order of the files.

    Raises WeightsRefused: `not_finite`: one is NaN or infinite in the published form; the message names tensor and place.
    """
    found = {name: place for name, tensor in tensors.items() if (place := _first_not_finite(tensor)) is not None}
    if found:
        name, place = next(iter(found.items()))
        more = f", and {len(found) - 1} more tensors have such numbers" if len(found) > 1 else ""
        where = f"[{', '.join(str(int(index)) for index in np.unravel_index(place, tensors[name].shape))}]"
        raise WeightsRefused(
            "not_finite",
            f"{name} holds {_kind(tensors[name], place)} at {where}{more}: nothing can be served or trained with it. Fetch the "
            "checkpoint again; if its training diverged, take an earlier one",
        )


def end_problems(folder: Path, vocabulary: int) -> Iterator[tuple[str, str]]:
    """By file, an `eos_token_id` that no token of the vocabulary has: an answer would not end with it. Yields code and message."""
    for file in (folder / "generation_config.json", folder / "config.json"):
        try:
            ids = _settings(file).get("eos_token_id")
        except WeightsRefused as error:
            yield error.code, error.message
            continue
        for one in ids if isinstance(ids, list) else [] if ids is None else [ids]:
            if not isinstance(one, int) or isinstance(one, bool) or not 0 <= one < vocabulary:
                ids_there = f"the embedding {vocabulary} rows, 0 to {vocabulary - 1}"
                yield (
                    "wrong_eos",
                    f"{file} has the eos_token_id {one!r}, and {ids_there}: write the id of the token that ends an answer",
                )
        if ids is not None:  # as transformers: config.json counts only where generation_config.json names none
            return


def _has_weights(folder: Path) -> bool:
    return (folder / SINGLE_FILE).is_file() or (folder / INDEX_FILE).is_file()


def _first_not_finite(tensor: Tensor) -> int | None:
    """The place of the first element, counted flat; None if all are finite."""
    bits, limit = _NOT_FINITE[tensor.dtype]
    words = words_of(tensor)
    for start in range(0, words.size, _CHUNK):
        chunk = words[start : start + _CHUNK] & bits
        if chunk.max() >= limit:
            return start + int(np.argmax(chunk >= limit))
    return None


def _kind(tensor: Tensor, place: int) -> str:
    bits, limit = _NOT_FINITE[tensor.dtype]
    word = int(words_of(tensor)[place]) & bits
    infinity = 0x7F80_0000 if tensor.dtype == "F32" else limit
    return "NaN" if word > infinity else "infinity" if word == infinity else "a number that BF16 rounds to infinity"


def read_config(file: Path) -> Any:
    """The content of a JSON file. Raises FileNotFoundError; WeightsRefused, `unreadable_config`, if it is no JSON."""
    try:
        return json.loads(read_small(file))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsRefused("unreadable_config", f"{file} is not JSON: {error}") from error


def _settings(file: Path) -> dict[str, Any]:
    try:
        content = read_config(file)
    except FileNotFoundError:
        return {}
    return content if isinstance(content, dict) else {}
