"""Makes a rank's share of a trainee, as the settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from contracts.errors import WeightsRefused
from pipelines.training.learning.trainees import way_on
from pipelines.training.shards.adapter import ShardedAdapter
from pipelines.training.shards.loading import BaseFiles
from pipelines.training.shards.whole import ShardedModel

if TYPE_CHECKING:
    from pipelines.training.settings import TrainingSettings
    from pipelines.training.shards.group import Group
    from pipelines.training.shards.sharded import Share


def make_share(base: str, settings: TrainingSettings, device: str, group: Group, root: str = "") -> Share:
    """Make this rank's share of a trainee, at its beginning.

    Args:
        base: folder or hub id of the base policy.
        settings: of training.
        device: of this rank.
        group: of all ranks, which call this too.
        root: of version 0: the files must have it; empty: this rank does not know it.

    Raises NotFound, WeightsRefused, InvalidSettings: see `BaseFiles`, `require_card` and the share; `other_model`: the files have another root.
    """
    if torch.device(device).type == "cuda":
        way_on(base, settings, device, processes=group.world)
    files = BaseFiles(base)
    found = files.root(group)
    if root and found != root:
        raise WeightsRefused("other_model", f"the files of {base} are not what version 0 was published from")
    if settings.adapter is not None:
        return ShardedAdapter(files, found, settings, device, group)
    return ShardedModel(files, settings, device, group)
