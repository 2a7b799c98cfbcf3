"""Published bits and model parameters: out of a model, and changed in place while it serves.

A policy *is* its published bfloat16 bits. A model in float32 holds them upcast, so going out and in again is exact.
A change comes in twice: `stage_changes` checks it, brings it to the device and notes what it will overwrite, while the
model serves; `apply_patches` only writes, while the model waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from contracts.errors import WeightsRefused
from weights.codec.delta import TensorChange
from weights.tensors import Tensor, Tensors

_DTYPE = "BF16"
_WIDTH = 2
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
WHOLE_FROM = 0.1
"""From this share of its elements on, a tensor is written whole: on CPU, scattering takes as long as copying at 6% to
10% in bfloat16, at 11% to 20% in float32, the smaller tensor first."""

Words = npt.NDArray[Any]
Changes = Mapping[str, TensorChange]


class Patch(NamedTuple):
    """One write. Both sides are seen as integers of the parameter's width: no value is ever converted."""

    parameter: torch.Tensor
    """[elements]: the parameter itself, flat."""
    places: torch.Tensor | None
    """int64 [changes]; None: all elements."""
    values: torch.Tensor
    """[changes] or [elements]."""


class Patches(NamedTuple):
    """A checked change of a model, on its device; nothing is left to fail."""

    writes: tuple[Patch, ...]
    undo: Changes
    """What takes it back, as published bits in the host's memory."""
    num_changed: int
    """Elements it was told to change."""
    num_weights: int
    """Elements of the model."""


class ModelBits(Mapping[str, Tensor]):
    """A model's parameters as bfloat16 bits, tied weights once, named as in its safetensors checkpoint.

    Each tensor is made when it is asked for, so looking at all of them in turn takes the memory of one. Not to be
    written to: in a bfloat16 model on CPU it is the parameter itself.

    Args:
        model: whose parameters.
        changes: taken as made: an undo log shows the version before.
    """

    def __init__(self, model: Any, changes: Changes | None = None) -> None:
        self._parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
        self._changes = changes or {}

    def __getitem__(self, name: str) -> Tensor:
        parameter, change = self._parameters[name], self._changes.get(name)
        words = _words(parameter) if change is None else _changed(_words(parameter), change)
        return Tensor(dtype=_DTYPE, shape=tuple(parameter.shape), data=words.view(np.uint8))

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


def tensors_of(model: Any) -> Tensors:
    """A copy of every parameter: see `ModelBits`."""
    return {name: tensor._replace(data=tensor.data.copy()) for name, tensor in ModelBits(model).items()}


def merge_changes(steps: Iterable[Changes]) -> dict[str, TensorChange]:
    """Changes that follow one another, as one."""
    merged: dict[str, TensorChange] = {}
    for changes in steps:
        for name, change in changes.items():
            earlier = merged.get(name)
            merged[name] = change if earlier is None or change.places is None else _then(earlier, change)
    return merged


def changes_from(model: Any, source: Mapping[str, Tensor], changes: Changes) -> dict[str, TensorChange]:
    """What makes `model` equal to `source` with `changes` made: the elements that differ, tensor by tensor.

    Tensors that `source` lacks are passed on as they are, for `stage_changes` to refuse.
    """
    here = ModelBits(model)
    found = {name: change for name, change in changes.items() if name not in source}
    for name, tensor in source.items():
        change = changes.get(name)
        if change is not None and (change.places is None or name not in here):
            found[name] = change
            continue
        words = tensor.data.view("<u2")
        wanted = words if change is None else _changed(words, change)
        places = np.flatnonzero(here[name].data.view("<u2") != wanted)
        if places.size:
            found[name] = TensorChange(_DTYPE, tensor.shape, places.astype(np.uint32), wanted[places])
    return found


def stage_changes(
    model: Any, changes: Changes, names: Collection[str] | None = None, *, with_undo: bool = True
) -> Patches:
    """Bring a change to the model's device, fully checked, so that nothing is left to fail in `apply_patches`.

    Args:
        model: what will be changed; until then it may serve, and must stay as it is.
        changes: by name of the parameter.
        names: all tensors of the version that is to come; None: those of the model.
        with_undo: note what is overwritten.

    Raises:
        WeightsRefused: `missing_tensor`, `unknown_tensor`, `wrong_shape`, `wrong_dtype` or `not_finite`.
    """
    parameters: dict[str, torch.Tensor] = dict(model.named_parameters())
    if names is not None and (missing := sorted(parameters.keys() - set(names))):
        raise WeightsRefused("missing_tensor", f"{len(missing)} tensors are missing, first {missing[0]}", names=missing)
    if unknown := sorted({*changes, *(names or ())} - parameters.keys()):
        raise WeightsRefused(
            "unknown_tensor",
            f"the version has {len(unknown)} tensors that the model lacks, first {unknown[0]}",
            names=unknown,
        )
    for name, change in changes.items():
        _check(name, parameters[name], change)
    writes = {name: _patch(parameters[name], change) for name, change in changes.items() if change.words.size}
    return Patches(
        writes=tuple(writes.values()),
        undo={name: _old(patch, parameters[name], changes[name]) for name, patch in writes.items()}
        if with_undo
        else {},
        num_changed=sum(change.words.nbytes // _WIDTH for change in changes.values()),
        num_weights=sum(parameter.numel() for parameter in parameters.values()),
    )


@torch.no_grad()
def apply_patches(patches: Patches) -> Changes:
    """Write a staged change into its parameters, in place; returns what takes it back."""
    for parameter, places, values in patches.writes:
        if places is None:
            parameter.copy_(values)
        else:
            parameter.scatter_(0, places, values)
    if patches.writes and patches.writes[0].parameter.is_cuda:
        torch.cuda.synchronize(patches.writes[0].parameter.device)
    return patches.undo


def copy_tensors(model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Make a model equal to published bits, in place.

    Raises:
        WeightsRefused: as `stage_changes`; no parameter was changed.
    """
    whole = {name: TensorChange(tensor.dtype, tensor.shape, None, tensor.data) for name, tensor in tensors.items()}
    apply_patches(stage_changes(model, whole, whole, with_undo=False))


def _then(earlier: TensorChange, later: TensorChange) -> TensorChange:
    """Two changes of one tensor as one; the later, which has places, wins where both write."""
    if earlier.places is None:
        return earlier._replace(words=_changed(earlier.words, later))
    # Of equal places `unique` returns the first.
    places, first = np.unique(np.concatenate([later.places, earlier.places]), return_index=True)
    return later._replace(places=places, words=np.concatenate([later.words, earlier.words])[first])


def _check(name: str, parameter: torch.Tensor, change: TensorChange) -> None:
    shape, num_weights = tuple(parameter.shape), parameter.numel()
    if change.shape != shape or (change.places is None and change.words.nbytes != _WIDTH * num_weights):
        raise WeightsRefused(
            "wrong_shape",
            f"{name} has shape {change.shape} in {change.words.nbytes} bytes, the model wants {shape}",
        )
    if change.places is not None and change.places.size and change.places.max() >= num_weights:
        raise WeightsRefused("wrong_shape", f"{name} changes beyond its last element")
    if change.dtype != _DTYPE:
        raise WeightsRefused("wrong_dtype", f"{name} is {change.dtype}; published weights are {_DTYPE}")
    if not torch.isfinite(_values(change)).all():
        raise WeightsRefused("not_finite", f"{name} holds NaN or infinity; serving it would kill the engine")


def _patch(parameter: torch.Tensor, change: TensorChange) -> Patch:
    integers = _INTEGERS[parameter.element_size()]
    flat = parameter.detach().view(-1).view(integers)
    values = _values(change).to(parameter.device, parameter.dtype).view(integers)
    if change.places is None:
        return Patch(flat, None, values)
    places = torch.tensor(change.places, dtype=torch.int64, device=parameter.device)
    if places.numel() < WHOLE_FROM * flat.numel():
        return Patch(flat, places, values)
    return Patch(flat, None, flat.clone().scatter_(0, places, values))


def _old(patch: Patch, parameter: torch.Tensor, change: TensorChange) -> TensorChange:
    """What a write will overwrite."""
    if patch.places is None:
        return change._replace(places=None, words=_words(parameter).copy())
    return change._replace(words=_words(parameter.detach().view(-1)[patch.places]))


def _values(change: TensorChange) -> torch.Tensor:
    return torch.tensor(change.words.view("<i2")).view(torch.bfloat16)


def _changed(words: Words, change: TensorChange) -> Words:
    """A copy, with the change made."""
    if change.places is None:
        return change.words
    changed: Words = words.copy()
    changed[change.places] = change.words
    return changed


def _words(parameter: torch.Tensor) -> Words:
    """A parameter's bits, flat; in bfloat16 on CPU they share its memory."""
    value = parameter.detach().to("cpu", torch.bfloat16).contiguous()
    words: Words = value.view(-1).view(torch.int16).numpy().view("<u2")
    return words
