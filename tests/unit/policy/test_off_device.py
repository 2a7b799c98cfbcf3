from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from policy.off_device import Ferry
from tests.each_case import each_case

SIZE = 16


class Device:
    """A device whose copies arrive when they are waited for, and not before."""

    def __init__(self) -> None:
        self.rooms: list[torch.Tensor] = []
        self.on_the_way: list[int] = []
        self.departed = self.most = 0

    def room(self, num_bytes: int) -> torch.Tensor:
        self.rooms.append(torch.zeros(num_bytes, dtype=torch.uint8))
        return self.rooms[-1]

    def depart(self, _: torch.device) -> Callable[[], None]:
        number = self.departed = self.departed + 1
        self.on_the_way.append(number)
        self.most = max(self.most, len(self.on_the_way))

        def arrive() -> None:
            self.on_the_way.remove(number)

        return arrive


@each_case("count", [0, 1, 7, 8, 9, 16, 17, 41])
def test_every_chunk_arrives_in_its_place_through_two_buffers(count: int) -> None:
    device = Device()
    ferry = Ferry(device.room, device.depart, SIZE)
    for seed in range(2):
        source = torch.from_numpy(np.random.default_rng(seed).integers(-(2**15), 2**15, count).astype("<i2"))
        found = ferry.bring(source)
        assert found.view("<i2").tolist() == source.tolist()
        assert not device.on_the_way, "nothing is handed out before it arrived"
    assert len(device.rooms) == 2, "the buffers stay"
    assert device.most == min(2, -(-2 * count // SIZE)), "one is filled while the other is emptied"
