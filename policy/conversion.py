"""Where each tensor of a checkpoint lies in the parameters of a model.

A checkpoint and the module that transformers makes of it may cut the same numbers differently: one tensor per expert on disk, one
fused parameter in memory. transformers' own conversion leads back to the checkpoint's names (`revert_weight_conversion`). It is run here
once per model, on tensors without memory, which only record the parameter and the view: a conversion that computes is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from contracts.errors import WeightsRefused

_SAME = frozenset({"contiguous", "clone", "detach"})
_JOINS = frozenset({"cat", "concat", "concatenate"})
_VIEWS = frozenset({
    "view", "transpose", "permute", "movedim", "moveaxis", "swapaxes", "t", "chunk", "split", "split_with_sizes",
    "tensor_split", "unbind", "squeeze", "unsqueeze", "narrow", "select", "unflatten", "__getitem__", "__iter__",
    "__len__", "__get__", "size", "stride", "dim", "ndimension", "numel", "is_contiguous", "is_floating_point",
    "_set_grad_enabled", "get_device", "__hash__", "__repr__",
})  # fmt: skip
"""Functions of torch that only look at a tensor, or give another view of it."""


class ParameterView(NamedTuple):
    """Elements of one parameter, in row-major order of `shape`."""

    parameter: str
    """The module's name of a parameter or of a persistent buffer."""
    shape: tuple[int, ...]
    """May have more dimensions than the tensor of the checkpoint."""
    strides: tuple[int, ...]
    """In elements of the flat parameter."""
    offset: int

    @property
    def num_elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """True if the elements are neighbours in the parameter, in this order."""
        steps = [math.prod(self.shape[at + 1 :]) for at in range(len(self.shape))]
        each = zip(self.shape, self.strides, steps, strict=True)
        return all(size == 1 or stride == step for size, stride, step in each)


class JoinedViews(NamedTuple):
    """A tensor [outer, sum of widths, inner] of which each part is [outer, width, inner]."""

    outer: int
    inner: int
    widths: tuple[int, ...]
    parts: tuple[Place, ...]


Place = ParameterView | JoinedViews


class CheckpointTensor(NamedTuple):
    """One tensor of a checkpoint."""

    shape: tuple[int, ...]
    place: Place

    @property
    def num_elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


Conversion = Mapping[str, CheckpointTensor]
"""By the checkpoint's name of the tensor."""

_KNOWN: WeakKeyDictionary[Any, dict[str, CheckpointTensor]] = WeakKeyDictionary()


def state_of(model: Any) -> dict[str, torch.Tensor]:
    """The parameters and persistent buffers of a model by the module's names, tied ones once."""
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    state: dict[str, torch.Tensor] = model.state_dict(keep_vars=True)
    found: dict[int, str] = {}
    # The targets of ties come last, so that a tied tensor gets the name of its source, as in transformers' checkpoints.
    for name in sorted(state, key=lambda name: name in tied):
        found.setdefault(id(state[name]), name)
    kept = set(found.values())
    return {name: tensor for name, tensor in state.items() if name in kept}


def conversion_of(model: Any) -> Conversion:
    """Where each tensor of the model's checkpoint lies. The first call for a model does the work.

    Raises WeightsRefused: `conversion`: transformers' conversion computes new values, or does not hold every parameter once; `wrong_dtype`:
    a parameter or persistent buffer is not of floating point.
    """
    if model not in _KNOWN:
        _KNOWN[model] = _recorded(model)
    return _KNOWN[model]


def whole_parts(place: Place, values: torch.Tensor) -> Iterator[tuple[ParameterView, torch.Tensor]]:
    """The values [elements] of a checkpoint's tensor, view by view."""
    if isinstance(place, ParameterView):
        yield place, values
        return
    blocks = torch.split(values.view(place.outer, -1, place.inner), list(place.widths), dim=1)
    for part, block in zip(place.parts, blocks, strict=True):
        yield from whole_parts(part, block.reshape(-1))


def sparse_parts(
    place: Place, places: torch.Tensor, values: torch.Tensor
) -> Iterator[tuple[ParameterView, torch.Tensor, torch.Tensor]]:
    """Places and values [changes] of a checkpoint's tensor, view by view: the places are those in the flat parameter."""
    if isinstance(place, ParameterView):
        yield place, in_parameter(place, places), values
        return
    inner, width = place.inner, sum(place.widths)
    row, column = places // inner, places % inner
    outer, row = row // width, row % width
    start = 0
    for part, size in zip(place.parts, place.widths, strict=True):
        chosen = (row >= start) & (row < start + size)
        if bool(chosen.any()):
            inside = (outer[chosen] * size + row[chosen] - start) * inner + column[chosen]
            yield from sparse_parts(part, inside, values[chosen])
        start += size


def in_parameter(view: ParameterView, places: torch.Tensor) -> torch.Tensor:
    """Places in a view as places in its flat parameter, int64."""
    if view.is_contiguous:
        return places + view.offset
    found, rest = torch.full_like(places, view.offset), places
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        found += rest % size * stride
        rest = rest // size
    return found


def seen(view: ParameterView, parameter: torch.Tensor) -> torch.Tensor:
    """What a view sees of a parameter; the same memory."""
    return parameter.detach().view(-1).as_strided(view.shape, view.strides, view.offset)


class _Recorder(TorchFunctionMode):
    """Lets a conversion run on tensors without memory. An operation that would copy is recorded with its sources instead."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[torch.Tensor, Callable[[Callable[[torch.Tensor], Place]], Place]]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        name, options = func.__name__, kwargs or {}
        if name in _SAME:
            return args[0]
        if name in _JOINS:
            return self._joined(list(args[0]), *args[1:], **options)
        if name == "stack":
            dim = options.get("dim", args[1] if len(args) > 1 else 0)
            dim += (args[0][0].dim() + 1) * (dim < 0)
            return self._joined([tensor.unsqueeze(dim) for tensor in args[0]], dim)
        if name in {"reshape", "flatten"}:
            return self._reshaped(func, args, options)
        if name in _VIEWS:
            return func(*args, **options)
        raise WeightsRefused("conversion", f"transformers' conversion of this architecture computes ({name})")

    def _joined(self, tensors: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
        dim += tensors[0].dim() * (dim < 0)
        widths = tuple(tensor.shape[dim] for tensor in tensors)
        shape = list(tensors[0].shape)
        outer, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
        shape[dim] = sum(widths)
        return self._keep(
            torch.empty(shape, dtype=tensors[0].dtype, device="meta"),
            lambda found: JoinedViews(outer, inner, widths, tuple(map(found, tensors))),
        )

    def _reshaped(self, func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> torch.Tensor:
        source: torch.Tensor = args[0]
        result: torch.Tensor = func(*args, **options)
        if _storage_of(result) == _storage_of(source):
            return result
        return self._keep(torch.empty_like(result), lambda found: found(source))

    def _keep(self, made: torch.Tensor, place: Callable[[Callable[[torch.Tensor], Place]], Place]) -> torch.Tensor:
        self.made[_storage_of(made)] = (made, place)
        return made


def _storage_of(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 the only name of a storage on `meta`


def _recorded(model: Any) -> dict[str, CheckpointTensor]:
    state = state_of(model)
    blank = {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in state.items()}
    for name, tensor in blank.items():
        if not tensor.is_floating_point():
            raise WeightsRefused("wrong_dtype", f"{name} is {tensor.dtype}; only floating point can be published")
    owners = {_storage_of(tensor): name for name, tensor in blank.items()}
    with _Recorder() as recorder:
        is_of_transformers = isinstance(model, PreTrainedModel) or hasattr(model, "_weight_conversions")
        converted: dict[str, torch.Tensor] = (
            revert_weight_conversion(model, dict(blank)) if is_of_transformers else dict(blank)
        )

    def place_of(tensor: torch.Tensor) -> Place:
        key = _storage_of(tensor)
        if key in owners:
            return ParameterView(owners[key], tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))
        made, place = recorder.made.get(key, (None, None))
        if made is None or place is None or made.numel() != tensor.numel() or not tensor.is_contiguous():
            raise WeightsRefused("conversion", "transformers' conversion of this architecture is not a rearrangement")
        placed: Place = place(place_of)
        return placed

    found = {name: CheckpointTensor(tuple(tensor.shape), place_of(tensor)) for name, tensor in converted.items()}
    _check_complete(found, {name: tensor.numel() for name, tensor in blank.items()})
    return found


def _check_complete(found: Conversion, sizes: Mapping[str, int]) -> None:
    """Every element of every parameter is in the checkpoint, once."""
    held = dict.fromkeys(sizes, 0)
    for tensor in found.values():
        for view in views_of(tensor.place):
            held[view.parameter] += view.num_elements
    if wrong := sorted(name for name, size in sizes.items() if held[name] != size):
        raise WeightsRefused(
            "conversion", f"transformers' conversion keeps {held[wrong[0]]} of {sizes[wrong[0]]} elements of {wrong[0]}"
        )


def views_of(place: Place) -> Iterator[ParameterView]:
    """The views that a tensor is made of."""
    if isinstance(place, ParameterView):
        yield place
    else:
        for part in place.parts:
            yield from views_of(part)
