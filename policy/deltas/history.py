"""What both ends remember of recent versions, kept on the device: see `weights.codec.history`, whose rules these are."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from policy.deltas.passes import age, note_moves
from weights.codec.history import History, Moves
from weights.versions.manifest import NO_HISTORY


class DeviceHistory:
    """The states of a policy's tensors, one byte per weight; a tensor that is not listed remembers nothing."""

    def __init__(
        self, device: torch.device | str, digest: str = NO_HISTORY, states: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        self.digest = digest
        self._device = device
        self._states = dict(states or {})

    @classmethod
    def of(cls, history: History, sizes: Mapping[str, int], device: torch.device | str) -> DeviceHistory:
        """A copy on a device; `sizes` are the weights of each tensor."""
        found = {name: history.states(name, size) for name, size in sizes.items()}
        states = {name: torch.tensor(states, device=device) for name, states in found.items() if states.any()}
        return cls(device, history.digest, states)

    def to_host(self) -> History:
        """A copy, to be kept in a file."""
        return History(self.digest, {name: states.cpu().numpy().copy() for name, states in self._states.items()})

    def states(self, name: str, num_weights: int) -> torch.Tensor | None:
        """uint8 [num_weights], not to be written; None: nothing is remembered of this tensor."""
        found = self._states.get(name)
        return None if found is None or found.numel() != num_weights else found

    def advance(self, moves: Mapping[str, Moves], target_root: str) -> None:
        """Take a version in, in place; a tensor that is not in `moves` was rewritten as a whole, and is forgotten."""
        self.digest = History(self.digest).next_digest(target_root)
        for name in self._states.keys() - moves.keys():
            del self._states[name]
        for name, moved in moves.items():
            states = self.states(name, moved.num_weights)
            if states is None:
                if moved.places.size == 0:
                    self._states.pop(name, None)
                    continue
                states = torch.zeros(moved.num_weights, dtype=torch.uint8, device=self._device)
            age(states)
            places = torch.tensor(moved.places.astype(np.int64), device=self._device)
            note_moves(states, places, torch.tensor(moved.moved_down, device=self._device))
            self._states[name] = states

    def reset(self) -> None:
        """Forget everything, as at an anchor."""
        self.digest = NO_HISTORY
        self._states = {}
