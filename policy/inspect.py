"""What is in a checkpoint, and whether Millrace can serve and train it: `python -m policy.inspect FOLDER` prints JSON.

In: the files of a checkpoint. Out: a `CheckpointReport`. transformers loads tensors without memory here; the weights are read from
the disk once, to find NaN and infinity, and never held.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as transformers_logging

from contracts.checkpoints import CheckpointProblem, CheckpointReport
from contracts.errors import MillraceError, NotFound, WeightsRefused
from policy.checkpoint_checks import check_finite, check_folder, check_names, end_problems, read_config
from policy.conversion import Conversion, conversion_of, state_of
from policy.load import context_of, is_paged
from policy.routing import expert_layers, is_mixture
from weights.mapped import map_checkpoint
from weights.tensors import Tensors

PUBLISHED_FROM = ("BF16", "F16", "F32")
"""Dtypes on disk that are published, as BF16."""
_NUM_NAMED = 3


def inspect_checkpoint(folder: Path) -> CheckpointReport:
    """Look at a checkpoint; what is wrong with it is in `problems`, the first reason of each kind."""
    transformers_logging.set_verbosity_error()
    known: dict[str, Any] = {}
    try:
        check_folder(folder)
        config, architecture = _architecture(folder)
        tensors = map_checkpoint(folder)
        check_names(tensors)
        dtypes = Counter(tensor.dtype for tensor in tensors.values())
        known = {"architecture": architecture.__name__, "dtypes": dict(dtypes)}
        _check_dtypes(tensors)
        model, published_as = _placed(architecture, config, tensors)
        conversion = conversion_of(model)
        check_finite({name: tensor for name, tensor in tensors.items() if published_as.get(name, name)})
    except MillraceError as error:
        return CheckpointReport(**known, problems=[CheckpointProblem(error.code, error.message)])
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    return CheckpointReport(
        **known,
        num_tensors=len(conversion),
        num_parameters=len(state_of(model)),
        num_weights=sum(tensor.num_elements for tensor in conversion.values()),
        published_as=published_as,
        context=context_of(config),
        vocabulary=vocabulary,
        is_paged=is_paged(model),
        num_expert_layers=len(expert_layers(model)),
        is_mixture=is_mixture(model),
        cache_elements_per_token=_cache_elements(model),
        problems=[CheckpointProblem(code, says) for code, says in _other_problems(folder, config, vocabulary)],
    )


def _architecture(folder: Path) -> tuple[Any, Any]:
    """The configuration, and the class that transformers has for it."""
    file = folder / "config.json"
    try:
        content = read_config(file)
    except FileNotFoundError as error:
        raise NotFound(f"{folder} holds no model: expected a folder with config.json and safetensors files") from error
    if not isinstance(content, dict):
        raise WeightsRefused("unreadable_config", f"{file} is a {type(content).__name__}, not an object")
    kind = content.get("model_type")
    if content.get("auto_map"):
        raise WeightsRefused("custom_code", f"{file} asks for code of its own (auto_map), which is never run")
    if content.get("quantization_config"):
        raise WeightsRefused("quantised", f"{folder} is quantised: give the checkpoint in BF16, F16 or F32 instead")
    try:
        config = AutoConfig.from_pretrained(folder)
    except Exception as error:  # a configuration may fail in any way, and each is the file's fault
        reason = " ".join(str(error).split())[:200]
        raise WeightsRefused(
            "unknown_architecture", f"{file}: the pinned transformers cannot use model_type {kind!r}: {reason}"
        ) from error
    found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    saved = content.get("architectures") or []
    if found is None or config.get_text_config() is not config or (saved and found.__name__ not in saved):
        holds = f"{folder} holds {', '.join(saved) or kind}"
        raise WeightsRefused("not_a_text_model", f"{holds}; a causal language model of text alone is needed")
    return config, found


def _check_dtypes(tensors: Tensors) -> None:
    allowed = ", ".join(PUBLISHED_FROM)
    for name, tensor in tensors.items():
        if tensor.dtype not in PUBLISHED_FROM:
            raise WeightsRefused("wrong_dtype", f"{name} is {tensor.dtype}; only {allowed} can be published")


def _placed(architecture: Any, config: Any, tensors: Tensors) -> tuple[Any, dict[str, str]]:
    """The model without memory, with every tensor in its place, and what is published under another name."""
    published_as = _ties(architecture, config, tensors)
    blank = {
        published_as.get(name, name): torch.empty(tensor.shape, dtype=torch.bfloat16, device="meta")
        for name, tensor in tensors.items()
        if published_as.get(name, name)
    }
    try:
        model, found = architecture.from_pretrained(
            None, config=config, state_dict=blank, device_map={"": "meta"}, dtype=torch.bfloat16,
            output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
    except RuntimeError:  # tensors that belong together do not fit: the names tell which
        model, found = _empty(architecture, config), {}
    shapes = {name: tuple(tensor.shape) for name, tensor in blank.items()}
    wanted = conversion_of(model)
    # Some classes declare tensors of their checkpoints that they do not use; transformers reports those as nothing.
    is_sound = found and not found["mismatched_keys"]
    unused = (shapes.keys() - wanted.keys() - found["unexpected_keys"]) if is_sound else set()
    _check_names(shapes, wanted, unused)
    if found.get("missing_keys"):
        raise WeightsRefused("missing_tensor", f"no tensor makes {min(found['missing_keys'])}")
    return model, {**published_as, **dict.fromkeys(unused, "")}


def _check_names(shapes: Mapping[str, tuple[int, ...]], wanted: Conversion, unused: set[str]) -> None:
    if missing := sorted(wanted.keys() - shapes.keys()):
        raise WeightsRefused("missing_tensor", f"the checkpoint lacks {_named(missing)}")
    if unknown := sorted(shapes.keys() - wanted.keys() - unused):
        raise WeightsRefused("unknown_tensor", f"the architecture has no place for {_named(unknown)}")
    for name, tensor in wanted.items():
        if (shape := shapes[name]) != tensor.shape:
            raise WeightsRefused("wrong_shape", f"{name} has the shape {shape}, the configuration says {tensor.shape}")


def _ties(architecture: Any, config: Any, tensors: Tensors) -> dict[str, str]:
    """Tied tensors that are on disk twice, or under the name of the copy: as transformers, one of them is enough."""
    found: dict[str, str] = {}
    for copy, source in (_empty(architecture, config).all_tied_weights_keys or {}).items():
        if copy not in tensors:
            continue
        if source not in tensors:
            found[copy] = source
        elif tensors[copy].shape == tensors[source].shape and np.array_equal(tensors[copy].data, tensors[source].data):
            found[copy] = ""
    return found


def _empty(architecture: Any, config: Any) -> Any:
    with torch.device("meta"):
        return architecture._from_config(config)  # noqa: SLF001 the public way needs the Auto class


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + more


def _cache_elements(model: Any) -> int:
    """Elements of keys and values per token, from the projections that make them."""
    projections = [getattr(module, name, None) for module in model.modules() for name in ("k_proj", "v_proj")]
    found = sum(int(item.out_features) for item in projections if isinstance(item, torch.nn.Linear))
    config = model.config
    if found or not is_paged(model):
        return found
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * width)


def _other_problems(folder: Path, config: Any, vocabulary: int) -> Iterator[tuple[str, str]]:
    """What does not concern the weights."""
    yield from end_problems(folder, vocabulary)
    if context_of(config) is None:
        yield "unknown_context", f"{folder / 'config.json'} names no context: add max_position_embeddings"
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # noqa: BLE001 the library raises nothing more specific
        yield "no_tokenizer", f"{folder / 'tokenizer.json'} cannot be used: {error}"
        return
    highest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if highest >= vocabulary:
        yield (
            "wrong_tokenizer",
            f"the tokenizer has the id {highest}, the embedding only {vocabulary} rows: it belongs to another model",
        )


def main(folder: Path) -> None:
    """Print the report as JSON."""
    sys.stdout.buffer.write(msgspec.json.encode(inspect_checkpoint(folder)) + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
