"""Successive versions to measure the codec on: a trace of a real run, or a walk as Adam makes it.

In: a file with `base/NAME` (bf16 bits as uint16) and `xor/STEP/NAME` (the bits that a step flipped; an array that a step
lacks did not change); or a seed and the share of weights that a step shall change. Out: versions, the base first.
Waits: for nothing. The walk: weights as of a trained model, Gaussian of sd 0.02, fp32 masters, Adam on gradients that
are noise of sd 1 and a drift of sd 0.3 that stays; what is published is the master rounded to bf16.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.npyio import NpzFile

from contracts.errors import InvalidValue
from weights.tensors import Tensor, Tensors

TOLERANCE = 0.02
"""How far a walk's density may be from the one asked for, relative."""
_BROKEN = (OSError, ValueError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)
_DEVIATION, _DRIFT = 0.02, 0.3
_BETA1, _BETA2, _EPSILON = 0.9, 0.95, 1e-8
_NUM_SAMPLES = 1 << 22
_SLOWEST, _FASTEST, _MOST_HALVINGS = 1e-10, 1e-2, 60

Words = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]


class Versions(NamedTuple):
    """A base, and what steps made of it."""

    steps: tuple[str, ...]
    tensors: Iterator[Tensors]
    """The base, then one version per step, each in memory of its own."""


class Walk(NamedTuple):
    """A synthetic run."""

    rows: int
    columns: int
    num_matrices: int = 8
    num_steps: int = 12
    is_on_grid: bool = True
    """The masters start at their published bits, as those of a policy do; else between them, as late in a run."""
    seed: int = 0


def read_trace(path: Path) -> Versions:
    """The versions of a trace, in the order of its steps; each is read when it is asked for.

    Raises:
        InvalidValue: the file cannot be read, or is not a trace. The message names the file, and the array if there is
            one; arrays are looked at when their version is, so it may come from the iterator.
    """
    with _opened(path) as archive:
        names = sorted(name.removeprefix("base/") for name in archive.files if name.startswith("base/"))
        flips = [name.removeprefix("xor/").partition("/") for name in archive.files if name.startswith("xor/")]
    if unknown := sorted(f"xor/{step}/{name}" for step, _, name in flips if name not in names):
        raise InvalidValue(f"{path}: {unknown[0]!r} changes no tensor of the base", param="trace")
    steps = sorted({step for step, _, _ in flips}, key=lambda step: (int(step) if step.isdecimal() else math.inf, step))
    if not names or not steps:
        raise InvalidValue(
            f"{path} is no trace: expected arrays of uint16 named base/NAME and xor/STEP/NAME", param="trace"
        )
    return Versions(tuple(steps), _trace(path, names, steps))


def random_walk(walk: Walk, learning_rate: float) -> Versions:
    """The versions of a synthetic run: the start, and one after every step."""
    return Versions(tuple(str(step + 1) for step in range(walk.num_steps)), _walk(walk, learning_rate))


def learning_rate_for(walk: Walk, density: float) -> float:
    """The learning rate at which the last step of the walk changes so many of the weights (0 to 1).

    Raises:
        InvalidValue: there is none.
    """
    # Of Adam's path only the scale depends on the learning rate, so two points of one path serve every attempt.
    sample = max(1, _NUM_SAMPLES // (walk.rows * walk.columns))
    starts, befores, afters = [], [], []
    for number in range(min(sample, walk.num_matrices)):
        generator = _generator(walk, number)
        starts.append(_start(walk, generator))
        directions = _directions(generator, walk.rows * walk.columns)
        before = sum(islice(directions, walk.num_steps - 1), np.zeros(walk.rows * walk.columns, np.float32))
        befores.append(before)
        afters.append(before + next(directions))
    start, before, after = (np.concatenate(parts) for parts in (starts, befores, afters))

    def density_at(learning_rate: float) -> float:
        old, new = (to_bf16(start - np.float32(learning_rate) * moved) for moved in (before, after))
        return float(np.mean(old != new))

    return bisect(density_at, density)


def bisect(density_at: Callable[[float], float], density: float) -> float:
    """Where a rising function of the learning rate comes within an eighth of `TOLERANCE` of `density`.

    Raises:
        InvalidValue: it does so nowhere between 1e-10 and 1e-2.
    """
    low, high = _SLOWEST, _FASTEST
    for _ in range(_MOST_HALVINGS):
        middle = math.sqrt(low * high)
        found = density_at(middle)
        if abs(found / density - 1) <= TOLERANCE / 8:
            return middle
        low, high = (low, middle) if found > density else (middle, high)
    raise InvalidValue(
        f"no learning rate changes {density:.2%} of the weights in a step; {middle:.3g} changes {found:.2%}: take more "
        "weights",
        param="density",
    )


def to_bf16(values: Floats) -> Words:
    """The bits of the nearest bf16, the even one of two; the values are finite."""
    bits = values.view(np.uint32)
    rounded: Words = ((bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16).astype(np.uint16)
    return rounded


def joined(tensors: Tensors) -> Words:
    """All words of a version in bf16, in the order of the names, as one array."""
    return np.concatenate([tensors[name].data for name in sorted(tensors)]).view(np.uint16)


def _opened(path: Path) -> NpzFile:
    if not path.is_file():
        raise InvalidValue(f"there is no trace {path}", param="trace")
    try:
        if not zipfile.is_zipfile(path):  # numpy would leave what it cannot read open
            raise InvalidValue(f"{path} is not an .npz archive, or is cut off", param="trace")
        archive: NpzFile = np.load(path)
    except _BROKEN as error:
        raise InvalidValue(f"{path} cannot be read as an .npz archive: {error}", param="trace") from error
    return archive


def _trace(path: Path, names: list[str], steps: list[str]) -> Iterator[Tensors]:
    with _opened(path) as archive:
        words = {name: _array(path, archive, f"base/{name}") for name in names}
        yield _as_tensors(words)
        for step in steps:
            flips = {name: f"xor/{step}/{name}" for name in names if f"xor/{step}/{name}" in archive}
            changed = {name: _array(path, archive, key, words[name].shape) for name, key in flips.items()}
            words = {name: old ^ changed[name] if name in changed else old.copy() for name, old in words.items()}
            yield _as_tensors(words)


def _array(path: Path, archive: NpzFile, key: str, shape: tuple[int, ...] | None = None) -> Words:
    try:
        array = archive[key]
    except _BROKEN as error:
        raise InvalidValue(f"{path}: the array {key!r} cannot be read: {error}", param="trace") from error
    if array.dtype != np.uint16 or shape not in {None, array.shape}:
        wanted = "uint16" if shape is None else f"uint16{list(shape)}"
        raise InvalidValue(
            f"{path}: the array {key!r} is {array.dtype}{list(array.shape)}, not {wanted}", param="trace"
        )
    return np.asarray(array, order="C")


def _as_tensors(words: dict[str, Words]) -> Tensors:
    return {name: Tensor("BF16", array.shape, array.reshape(-1).view(np.uint8)) for name, array in words.items()}


def _walk(walk: Walk, learning_rate: float) -> Iterator[Tensors]:
    paths = [_matrix(walk, number, learning_rate) for number in range(walk.num_matrices)]
    for words in zip(*paths, strict=True):
        yield _as_tensors({f"matrix{number}": matrix for number, matrix in enumerate(words)})


def _matrix(walk: Walk, number: int, learning_rate: float) -> Iterator[Words]:
    generator = _generator(walk, number)
    master = _start(walk, generator)
    yield to_bf16(master).reshape(walk.rows, walk.columns)
    for direction in islice(_directions(generator, master.size), walk.num_steps):
        master -= np.float32(learning_rate) * direction
        yield to_bf16(master).reshape(walk.rows, walk.columns)


def _generator(walk: Walk, number: int) -> np.random.Generator:
    return np.random.default_rng([walk.seed, number])


def _start(walk: Walk, generator: np.random.Generator) -> Floats:
    master = generator.standard_normal(walk.rows * walk.columns, np.float32) * np.float32(_DEVIATION)
    return (to_bf16(master).astype(np.uint32) << 16).view(np.float32) if walk.is_on_grid else master


def _directions(generator: np.random.Generator, size: int) -> Iterator[Floats]:
    """Where Adam goes, step by step, at a learning rate of 1."""
    drift = generator.standard_normal(size, np.float32) * np.float32(_DRIFT)
    mean, square = np.zeros((2, size), np.float32)
    step = 0
    while True:
        step += 1
        gradient = drift + generator.standard_normal(size, np.float32)
        mean += np.float32(1 - _BETA1) * (gradient - mean)
        square += np.float32(1 - _BETA2) * (gradient * gradient - square)
        size_of_step = np.sqrt(square / np.float32(1 - _BETA2**step)) + np.float32(_EPSILON)
        yield mean / np.float32(1 - _BETA1**step) / size_of_step
