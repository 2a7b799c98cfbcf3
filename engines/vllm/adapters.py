"""What a vLLM server must be for a policy that is trained by an adapter: how it is started, and which checkpoint is under the adapters."""

from __future__ import annotations

from pathlib import Path

from contracts.assignments import SLOTS
from contracts.errors import InvalidSettings
from contracts.memory.training import MOST_RANK, ways_of
from engines.following.driver import ServerFacts, check_server
from runtime.settings import Settings, read_home_settings
from weights.mapped import map_safetensors
from weights.tensors import read_folder, root_of, to_bf16

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, MOST_RANK)
"""What vLLM takes as `--max-lora-rank`."""
_IN_FLIGHT = 2
"""Versions that no arm has any more, and whose last answers are made beside those of the arms."""
KEPT = 2
"""Versions that stay loaded after they left the arms, to go back to at once."""


def adapter_rank(home: Path) -> int | None:
    """The rank of the adapter by which the policy of a home is trained; None: its whole weights are trained. Raises InvalidSettings."""
    return ways_of((read_home_settings(home) or {}).get("training", {}))[0].rank or None


def adapter_slots(rank: int, num_arms: int) -> tuple[int, int]:
    """Rank and number of the adapters that a server has room for: one of this rank for each arm at least."""
    return next(each for each in _RANKS if each >= rank), num_arms + _IN_FLIGHT


def adapter_arguments(rank: int, num_arms: int) -> tuple[str, ...]:
    """Arguments of a server for adapters of this rank, one for each arm at least."""
    largest, num = adapter_slots(rank, num_arms)
    return (
        "--enable-lora", "--max-lora-rank", str(largest), "--max-loras", str(num), "--max-cpu-loras", str(num + KEPT),
    )  # fmt: skip


def check_facts(facts: ServerFacts, settings: Settings, url: str) -> None:
    """See `Followed.check`."""
    check_server(facts, Path(settings.base), url)
    rank = adapter_rank(settings.home)
    if rank is None:
        return
    needs = f"start it with {' '.join(adapter_arguments(rank, len(SLOTS)))}"
    if facts.adapter_rank == 0:
        raise InvalidSettings(f"{url} was started without LoRA, and this policy is trained by an adapter: {needs}")
    if facts.adapter_rank < rank:
        raise InvalidSettings(
            f"{url} takes adapters up to rank {facts.adapter_rank}, this policy's has {rank}: {needs}"
        )
    if facts.num_adapters < len(SLOTS):
        raise InvalidSettings(
            f"{url} computes with {facts.num_adapters} adapters at once, and there are {len(SLOTS)} arms: {needs}"
        )


def check_base(facts: ServerFacts, base: Path, root: str, url: str) -> None:
    """Raises InvalidSettings if a server's checkpoint is not version 0, which has this root; or WeightsRefused: it cannot be read.

    `base` itself was compared with version 0 when the home was prepared. Version 0 is rounded to bfloat16, and may have other names.
    """
    folder = Path(facts.model)
    tensors = read_folder(folder, map_safetensors)
    wide = sorted(name for name, tensor in tensors.items() if tensor.dtype != "BF16")
    if wide and facts.dtype != "bfloat16":
        raise InvalidSettings(
            f"{url} computes in {facts.dtype} with {wide[0]} as {tensors[wide[0]].dtype}, and version 0, under the adapters, has bfloat16: "
            'set [vllm] dtype = "bfloat16", or convert the checkpoint'
        )
    if folder.resolve() == base.resolve() or (served := root_of(to_bf16(tensors))) == root:
        return
    own, differs = read_folder(base, map_safetensors), f"weights are not version 0 ({root})"
    if names := own.keys() ^ tensors.keys():
        differs = f"tensors are not named as those of the base policy, first {min(names)!r}"
    elif root_of(to_bf16(own)) == served:
        return
    raise InvalidSettings(f"{url} serves {folder}, whose {differs}: start it with {base}")
