"""What both ends remember about recent versions: which weights moved, how recently, how often in a row, and up or down.

One byte per weight: bit 7 is 1 if it moved down, bits 6 to 3 count the versions for which the move is still remembered, bits
2 to 0 count the moves in a row in one direction; 0 remembers nothing. The digest, which a manifest names, is the hash chain of
the roots of the versions since the last anchor.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import zstandard
from blake3 import blake3

from contracts.errors import WeightsRefused
from weights.codec import kernels
from weights.cores import each
from weights.tensors import Tensor, words_of
from weights.versions.manifest import NO_HISTORY

LARGEST_RATIO = 2**15
"""The largest ratio of zstd: a block of 4 bytes expands to at most 128 KiB."""

States = npt.NDArray[np.uint8]


class Moves(NamedTuple):
    """The weights of one tensor that moved in a version."""

    places: npt.NDArray[Any]
    """Indices, ascending, uint32 or uint64 [changes]."""
    moved_down: npt.NDArray[np.uint8]
    """[changes]"""
    num_weights: int


def no_moves(tensor: Tensor) -> Moves:
    """Of a tensor that did not change."""
    return Moves(np.empty(0, np.uint32), np.empty(0, np.uint8), words_of(tensor).size)


def _note(tensor: tuple[States, Moves]) -> None:
    states, moved = tensor
    kernels.age(states)
    kernels.note_moves(states, moved.places, moved.moved_down)


_MAGIC = b"MRH2"
_Packed = tuple[int, bytes, bytes]
"""How many states a tensor has, a bit for each, and those that are not 0."""


class _Saved(msgspec.Struct, array_like=True):
    digest: str
    states: dict[str, _Packed]


class _SavedWhole(msgspec.Struct, array_like=True):
    """In files of earlier releases."""

    digest: str
    states: dict[str, bytes]


class History:
    """The states of a policy's tensors. A tensor that is not listed has no history."""

    def __init__(self, digest: str = NO_HISTORY, states: Mapping[str, States] | None = None) -> None:
        self.digest = digest
        self._states = dict(states or {})

    def states(self, name: str, num_weights: int) -> States:
        """The states of one tensor, uint8 [num_weights]; read only."""
        found = self._states.get(name)
        if found is None or found.size != num_weights:
            return np.zeros(num_weights, dtype=np.uint8)
        return found

    def next_digest(self, target_root: str) -> str:
        """The digest after a version that leads to `target_root`."""
        return blake3(f"{self.digest} {target_root}".encode()).hexdigest(length=16)

    def advance(self, moves: Mapping[str, Moves], target_root: str) -> None:
        """Add a version, in place. A tensor that is not in `moves` was rewritten as a whole, and is forgotten."""
        self.digest = self.next_digest(target_root)
        for name in self._states.keys() - moves.keys():
            del self._states[name]
        kept = []
        for name, moved in moves.items():
            states = self._states.get(name)
            if states is None or states.size != moved.num_weights:
                if moved.places.size == 0:
                    self._states.pop(name, None)
                    continue
                states = np.zeros(moved.num_weights, dtype=np.uint8)
            self._states[name] = states
            kept.append((states, moved))
        each(_note, kept, [states.size for states, _ in kept])

    def reset(self) -> None:
        """Forget everything, as at an anchor."""
        self.digest = NO_HISTORY
        self._states = {}

    def copy(self) -> History:
        """A deep copy."""
        return History(self.digest, copy.deepcopy(self._states))

    def to_bytes(self) -> bytes:
        """For a file that survives a restart: few states are not 0, so they are kept as a bit each and these few, which is quicker than zstd."""
        tensors = [*self._states.values()]
        packed = each(_packed, tensors, [states.size for states in tensors])
        text = msgspec.msgpack.encode(_Saved(self.digest, dict(zip(self._states, packed, strict=True))))
        return _MAGIC + blake3(text).digest() + text

    @classmethod
    def from_bytes(cls, content: bytes) -> History:
        """Invert `to_bytes`, also of earlier releases. Raises WeightsRefused: `corrupt_history`; do without, or rebuild it from the last anchor."""
        try:
            if content.startswith(_MAGIC):
                saved = msgspec.msgpack.decode(_verified(content[len(_MAGIC) :]), type=_Saved)
                states = {name: _unpacked(*packed) for name, packed in saved.states.items()}
                return cls(saved.digest, states)
            # The size in a damaged frame is not trusted: zstd would allocate that much memory at once.
            if zstandard.frame_content_size(content) > len(content) * LARGEST_RATIO:
                raise WeightsRefused("corrupt_history", "the history cannot be read: it claims an impossible size")
            old = msgspec.msgpack.decode(zstandard.ZstdDecompressor().decompress(content), type=_SavedWhole)
        except (zstandard.ZstdError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise WeightsRefused("corrupt_history", f"the history cannot be read: {error}") from error
        return cls(
            old.digest, {name: np.frombuffer(bytearray(data), dtype=np.uint8) for name, data in old.states.items()}
        )


def _packed(states: States) -> _Packed:
    moved = np.empty(states.size + 1, np.uint8)
    return states.size, np.packbits(states != 0).tobytes(), moved[: _pack(states, moved)].tobytes()


@kernels.compiled
def _pack(states: States, moved: States) -> int:
    """Write the states that are not 0 into `moved`, which has one element more; how many."""
    count = 0
    for place in range(states.size):
        moved[count] = states[place]
        count += states[place] != 0
    return count


def _unpacked(size: int, bits: bytes, moved: bytes) -> States:
    states = np.zeros(size, np.uint8)
    np.place(states, np.unpackbits(np.frombuffer(bits, np.uint8), count=size), np.frombuffer(moved, np.uint8))
    return states


def _verified(content: bytes) -> bytes:
    text = content[blake3.digest_size :]
    if blake3(text).digest() != content[: blake3.digest_size]:
        raise ValueError("its bytes have another hash")
    return text
