"""What the card's machine has, and what all rows measure with."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from time import perf_counter
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.report import summarise
from benchmarks.trainer.plain import VARLEN

PACKAGES = {
    "torch", "transformers", "triton", "numpy", "numba", "safetensors", "msgspec", "pydantic", "structlog", "blake3", "peft",
}  # fmt: skip
_SHAPE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
SIZES = {
    name: dict(zip(_SHAPE, numbers, strict=True))
    for name, numbers in {
        "tiny": (8192, 64, 128, 2, 4, 2, 16),
        "0.6B": (151_936, 1024, 3072, 28, 16, 8, 128),
        "1.5B": (151_936, 2048, 6144, 24, 16, 8, 128),
        "8B": (151_936, 4096, 12_288, 36, 32, 8, 128),
    }.items()
}
"""Random policies; `0.6B` and `8B` have Qwen3's shapes."""
ROUNDS = 5


def facts(*, rehearse: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Versions, memory, and the parts of torch that the product uses where they are."""
    del rehearse, seconds
    yield {
        "start_method": "spawn" if torch.cuda._is_in_bad_fork() else "fork",  # noqa: SLF001 nothing public says it
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "host_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "packages": {each.name: each.version for each in distributions() if each.name in PACKAGES},
        "varlen": VARLEN and sorted(VARLEN),
        "grad_dtype": hasattr(torch.Tensor, "grad_dtype"),
        "device": "none",
    }
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        yield {
            "device": torch.cuda.get_device_name(),
            "bf16": torch.cuda.is_bf16_supported(),
            "free_gib": free / 2**30,
            "total_gib": total / 2**30,
            "cuda": torch.version.cuda,
        }


def model_of(size: str, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """A random policy with bfloat16's bits, made on the device without a file: the same in each process."""
    torch.manual_seed(0)
    config = Qwen3Config(**SIZES[size], tie_word_embeddings=size != "8B", max_position_embeddings=8192)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = Qwen3ForCausalLM(config)
        return model.to(dtype).eval().requires_grad_(requires_grad=False)
    finally:
        torch.set_default_dtype(torch.float32)


def timed(act: Callable[[], object], device: str) -> float:
    """Seconds until the device has done it."""
    if device == "cuda":
        torch.cuda.synchronize()
    began = perf_counter()
    act()
    if device == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - began


def device_ms(act: Callable[[], object], device: str) -> dict[str, Any]:
    """Milliseconds between two events on the device, over some rounds; without one, of the clock."""
    taken = []
    for _ in range(ROUNDS):
        if device == "cuda":
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's
            torch.cuda.synchronize()
            first.record()
            act()
            last.record()
            last.synchronize()
            taken.append(first.elapsed_time(last))
        else:
            taken.append(timed(act, device) * 1000)
    return summarise(taken)


def memory(device: str) -> dict[str, float]:
    """GiB of the device that this process has, and had at most."""
    if device != "cuda":
        return {}
    return {"held_gib": torch.cuda.memory_allocated() / 2**30, "peak_gib": torch.cuda.max_memory_allocated() / 2**30}
