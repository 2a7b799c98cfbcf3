"""Published bits and model parameters: out of a model, and changed in place while it serves.

A policy *is* its published bfloat16 bits. A model in float32 holds them upcast, so going out and in again is exact. Names and
shapes are those of the checkpoint (`policy.conversion`), not of the module: an expert is a tensor here, and a slice of a fused
parameter there. A tensor that the checkpoint holds in float32 or float16 is published, served and trained from its bfloat16 rounding.
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
from policy.conversion import (
    CheckpointTensor,
    ParameterView,
    Place,
    conversion_of,
    seen,
    sparse_parts,
    state_of,
    whole_parts,
)
from policy.off_device import ferry
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
State = Mapping[str, torch.Tensor]


class Patch(NamedTuple):
    """One write. Both sides are seen as integers of the parameter's width: no value is ever converted."""

    target: torch.Tensor
    """With places the parameter itself, flat [elements]; else the view of it that is written, of any shape."""
    places: torch.Tensor | None
    """int64 [changes]; None: the whole view."""
    values: torch.Tensor
    """[changes], or of the shape of the view."""


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
    """A model's parameters and persistent buffers as bfloat16 bits, tied ones once, named and shaped as in its safetensors checkpoint.

    Each tensor is made when it is asked for, so looking at all of them in turn takes the memory of one. Not to be
    written to: in a bfloat16 model on CPU it may be the parameter itself.

    Args:
        model: whose weights.
        changes: taken as made: an undo log shows the version before.
        weights: taken instead of the model's parameters of these names, for example from a file.
    """

    def __init__(
        self, model: Any, changes: Changes | None = None, weights: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        state = state_of(model)
        self._tensors = conversion_of(model)
        self._state = state if weights is None else _Replaced(model, state, weights)
        self._changes = changes or {}

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._tensors[name]
        words = _changed(_words_at(tensor.place, self._state), self._changes.get(name))
        return Tensor(dtype=_DTYPE, shape=tensor.shape, data=words.view(np.uint8))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class _Replaced(dict[str, torch.Tensor]):
    """A model's state with other weights. Experts that share a parameter ask for it one by one: the last ones are kept."""

    def __init__(self, model: Any, state: State, weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__(state)
        # The names of tied parameters differ between `named_parameters` and `state_of`.
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._names = {name: names[id(tensor)] for name, tensor in state.items() if id(tensor) in names}
        self._weights, self._last = weights, dict[str, torch.Tensor]()

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self._names:
            return super().__getitem__(name)
        if name not in self._last:
            self._last = dict([*self._last.items()][-1:])  # first, so that no third one is in memory
            self._last[name] = self._weights[self._names[name]]
        return self._last[name]


def tensors_of(model: Any, weights: Mapping[str, torch.Tensor] | None = None) -> Tensors:
    """A copy of every tensor: see `ModelBits`."""
    return copied(ModelBits(model, weights=weights))


def copied(bits: ModelBits) -> Tensors:
    """The tensors in memory of their own."""
    return {name: t if _is_own(t.data) else t._replace(data=t.data.copy()) for name, t in bits.items()}


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
        wanted = _changed(tensor.data.view("<u2"), change)
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
        changes: by name of the tensor in the checkpoint.
        names: all tensors of the version that is to come; None: those of the model.
        with_undo: note what is overwritten.

    Raises WeightsRefused: `missing_tensor`, `unknown_tensor`, `wrong_shape`, `wrong_dtype` or `not_finite`.
    """
    tensors, state = conversion_of(model), state_of(model)
    if names is not None and (missing := sorted(tensors.keys() - set(names))):
        raise WeightsRefused("missing_tensor", f"{len(missing)} tensors are missing, first {missing[0]}", names=missing)
    if unknown := sorted({*changes, *(names or ())} - tensors.keys()):
        raise WeightsRefused(
            "unknown_tensor",
            f"the version has {len(unknown)} tensors that the model lacks, first {unknown[0]}",
            names=unknown,
        )
    for name, change in changes.items():
        _check(name, tensors[name], change)
    changed = {name: change for name, change in changes.items() if change.words.size}
    whole = {
        name: change
        for name, change in changed.items()
        if change.places is None or change.places.size >= WHOLE_FROM * tensors[name].num_elements
    }
    scattered = [(tensors[name].place, change) for name, change in changed.items() if name not in whole]
    undone = changed if with_undo else {}
    return Patches(
        writes=(
            *(patch for name, each in whole.items() for patch in _whole_writes(tensors[name].place, state, each)),
            *_scattered_writes(scattered, state),
        ),
        undo={name: _old(tensors[name].place, state, each, is_whole=name in whole) for name, each in undone.items()},
        num_changed=sum(change.words.nbytes // _WIDTH for change in changes.values()),
        num_weights=sum(tensor.num_elements for tensor in tensors.values()),
    )


@torch.no_grad()
def apply_patches(patches: Patches) -> Changes:
    """Write a staged change into its parameters, in place; returns what takes it back."""
    for target, places, values in patches.writes:
        if places is None:
            target.copy_(values)
        else:
            target.scatter_(0, places, values)
    if patches.writes and patches.writes[0].target.is_cuda:
        torch.cuda.synchronize(patches.writes[0].target.device)
    return patches.undo


def stage_copy(model: Any, tensors: Mapping[str, Tensor]) -> Patches:
    """Stage what makes a model equal to published bits, without undo; raises as `stage_changes`."""
    whole = {name: TensorChange(tensor.dtype, tensor.shape, None, tensor.data) for name, tensor in tensors.items()}
    return stage_changes(model, whole, whole, with_undo=False)


def copy_tensors(model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Make a model equal to published bits, in place; raises as `stage_changes`, and then no parameter was changed."""
    apply_patches(stage_copy(model, tensors))


@torch.no_grad()
def to_published_values(model: Any) -> None:
    """Make a model in float32 compute with exactly its published bits: each weight becomes its bfloat16 rounding, in place."""
    for tensor in state_of(model).values():
        tensor.copy_(tensor.to(torch.bfloat16))


def _then(earlier: TensorChange, later: TensorChange) -> TensorChange:
    """Two changes of one tensor as one; the later, which has places, wins where both write."""
    if earlier.places is None:
        return earlier._replace(words=_changed(earlier.words, later))
    # Of equal places `unique` returns the first.
    places, first = np.unique(np.concatenate([later.places, earlier.places]), return_index=True)
    return later._replace(places=places, words=np.concatenate([later.words, earlier.words])[first])


def _check(name: str, tensor: CheckpointTensor, change: TensorChange) -> None:
    shape, num_weights = tensor.shape, tensor.num_elements
    if change.shape != shape or (change.places is None and change.words.nbytes != _WIDTH * num_weights):
        raise WeightsRefused(
            "wrong_shape", f"{name} has shape {change.shape} in {change.words.nbytes} bytes, the model wants {shape}"
        )
    if change.places is not None and change.places.size and change.places.max() >= num_weights:
        raise WeightsRefused("wrong_shape", f"{name} changes beyond its last element")
    if change.dtype != _DTYPE:
        raise WeightsRefused("wrong_dtype", f"{name} is {change.dtype}; published weights are {_DTYPE}")
    if not torch.isfinite(_values(change)).all():
        raise WeightsRefused("not_finite", f"{name} holds NaN or infinity; serving it would kill the engine")


def _scattered_writes(changes: Iterable[tuple[Place, TensorChange]], state: State) -> Iterator[Patch]:
    """One write for each parameter: hundreds of experts may share one."""
    parts: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for place, change in changes:
        for view, *part in sparse_parts(place, torch.tensor(change.places, dtype=torch.int64), _values(change)):
            parts.setdefault(view.parameter, []).append((part[0], part[1]))
    for name, found in parts.items():
        parameter = state[name]
        places, values = map(torch.cat, zip(*found, strict=True))
        values = _integers(values.to(parameter.device, parameter.dtype))
        yield Patch(_integers(parameter).view(-1), places.to(parameter.device), values)


def _whole_writes(place: Place, state: State, change: TensorChange) -> Iterator[Patch]:
    if isinstance(place, ParameterView) and change.places is not None:
        parameter = state[place.parameter]
        target = seen(place, _integers(parameter))
        places = torch.tensor(change.places, dtype=torch.int64, device=parameter.device)
        values = _integers(_values(change).to(parameter.device, parameter.dtype))
        yield Patch(target, None, target.reshape(-1).clone().scatter_(0, places, values).view(place.shape))
        return
    if change.places is not None:
        change = change._replace(words=_changed(_words_at(place, state), change))
    for view, part in whole_parts(place, _values(change)):
        parameter = state[view.parameter]
        values = _integers(part.to(parameter.device, parameter.dtype))
        yield Patch(seen(view, _integers(parameter)), None, values.view(view.shape))


def _old(place: Place, state: State, change: TensorChange, *, is_whole: bool) -> TensorChange:
    if is_whole:
        return change._replace(places=None, words=_words_at(place, state).copy())
    places = torch.tensor(change.places, dtype=torch.int64)
    words = np.empty(places.numel(), dtype="<u2")
    for view, found, order in sparse_parts(place, places, torch.arange(places.numel())):
        parameter = state[view.parameter].detach()
        words[order.numpy()] = _words(parameter.view(-1)[found.to(parameter.device)])
    return change._replace(words=words)


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as integers, so that no bit is ever converted."""
    return tensor.detach().view(_INTEGERS[tensor.element_size()])


def _values(change: TensorChange) -> torch.Tensor:
    return torch.tensor(change.words.view("<i2")).view(torch.bfloat16)


def _changed(words: Words, change: TensorChange | None) -> Words:
    """The words with the change made: in a copy, unless nothing or everything changes."""
    if change is None or change.places is None:
        return words if change is None else change.words
    changed: Words = words.copy()
    changed[change.places] = change.words
    return changed


def _words_at(place: Place, state: State) -> Words:
    """The bits of a checkpoint's tensor, flat; of neighbours in a bfloat16 parameter on CPU they share its memory."""
    if isinstance(place, ParameterView):
        return _words(seen(place, state[place.parameter]))
    parts = zip(place.parts, place.widths, strict=True)
    blocks = [_words_at(part, state).reshape(place.outer, width, place.inner) for part, width in parts]
    return np.concatenate(blocks, axis=1).reshape(-1)


def _words(values: torch.Tensor) -> Words:
    flat = values.detach().to(torch.bfloat16).contiguous().view(-1).view(torch.int16)
    words: Words = (ferry().bring(flat) if flat.is_cuda else flat.cpu().numpy()).view("<u2")
    return words


def _is_own(words: Words) -> bool:
    """True if numpy allocated the memory, so that no parameter can share it."""
    while isinstance(words.base, np.ndarray):
        words = words.base
    return words.base is None
