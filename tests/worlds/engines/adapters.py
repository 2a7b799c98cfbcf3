"""A policy in a folder's store whose version 0 is a base, and whose later versions are adapters of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

from policy.adapter import Adapter, AdapterBits, all_linear, linear_layers
from policy.weights import copy_tensors, tensors_of
from tests.worlds.engines.memory_store import POLICY
from tests.worlds.versions import moved, publish_next
from weights.adapters import CONFIG, PREFIX, AdapterConfig
from weights.codec.history import History
from weights.reader import Hop
from weights.stores.folder import FolderObjects
from weights.stores.store import WeightStore
from weights.tensors import Tensors, root_of
from weights.versions.manifest import Chunk

RANK, ALPHA = 4, 8.0
RUN = "test"


class FailingStore(WeightStore):
    """A store that fails with `error`, if there is one, whatever it is asked for; `routes`: the base version of each hop that was staged."""

    def __init__(self, folder: Path) -> None:
        super().__init__(FolderObjects(folder))
        self.error: Exception | None = None
        self.routes: list[list[int | None]] = []

    def stage_onto(self, *asked: Any, **named: Any) -> list[Hop]:
        hops = super().stage_onto(*asked, **named)
        self.routes.append([hop.manifest.base_version for hop in hops])
        return hops

    def read_small(self, path: str, most: int) -> bytes | None:
        if self.error is not None:
            raise self.error
        return super().read_small(path, most)

    def chunk(self, policy: str, chunk: Chunk, start: int = 0) -> bytes:
        if self.error is not None:
            raise self.error
        return super().chunk(policy, chunk, start)


class Adapted:
    """The store, and what its versions are: 0 in full, 1 as a step and in full, later ones as steps. Version 3 is near 2."""

    def __init__(self, folder: Path, make_model: Callable[[], Any], num_adapters: int = 0, rank: int = RANK) -> None:
        self.store = FailingStore(folder)
        self.model = make_model()
        self.versions: dict[int, Tensors] = {}
        self._history = History()
        self.publish(tensors_of(self.model))
        self.config = AdapterConfig(
            rank=rank, alpha=ALPHA, targets=all_linear(self.model), base_root=root_of(self.versions[0])
        )
        for version in range(1, num_adapters + 1):
            self.publish(self.near(2) if version == 3 else self.adapter(version))

    def publish(self, tensors: Tensors) -> None:
        """As the next version."""
        version = len(self.versions)
        base = self.versions[version - 1] if version > 1 else {}
        publish_next(self.store, POLICY, version, base=base, target=tensors, run=RUN, history=self._history)
        self.versions[version] = tensors

    def adapter(self, seed: int, config: AdapterConfig | None = None) -> Tensors:
        """A random adapter that matters."""
        made = Adapter(self.model, config or self.config, dtype=torch.float32, seed=seed, is_attached=False)
        generator = torch.Generator().manual_seed(seed)
        for name, weight in made.named_parameters():
            if "lora_B" in name:
                weight.normal_(0, 0.2, generator=generator)
        return {name: each._replace(data=each.data.copy()) for name, each in AdapterBits(made).items()}

    def near(self, version: int) -> Tensors:
        """An adapter of which a few weights differ from those of a version by a last place."""
        tensors = self.versions[version]
        weights = {name: tensor for name, tensor in tensors.items() if name != CONFIG}
        return {**moved(weights, 0.02, seed=version), CONFIG: tensors[CONFIG]}

    def forget_base(self) -> None:
        """Remove the bytes of version 0; its manifest stays."""
        chunks = self.store.manifest(POLICY, 0).chunks
        assert self.store.remove_chunks(POLICY, [chunk.blake3 for chunk in chunks], before=math.inf)

    def merged(self, version: int) -> Any:
        """A plain model of a version, made without hooks: W + alpha / rank * B A."""
        copy_tensors(self.model, self.versions[0])  # what is served is rounded to bfloat16
        tensors = self.versions[version]
        model = deepcopy(self.model)
        for name, layer in linear_layers(model, self.config.targets).items() if version else ():
            down, up = (_values(tensors, f"{PREFIX}{name}.lora_{part}.weight") for part in "AB")
            layer.weight += ALPHA / self.config.rank * (up @ down)
        return model


def _values(tensors: Tensors, name: str) -> torch.Tensor:
    tensor = tensors[name]
    words = tensor.data.view("<u2").astype(np.uint32) << 16
    return torch.from_numpy(words.view("<f4").reshape(tensor.shape).copy())
