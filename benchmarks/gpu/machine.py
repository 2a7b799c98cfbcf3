"""What the card's machine has, and what all rows measure with."""

from __future__ import annotations

import inspect
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.trainer.plain import VARLEN

PACKAGES = (
    "torch", "transformers", "triton", "numpy", "numba", "safetensors", "msgspec", "pydantic", "structlog", "blake3", "sqlalchemy",
    "cryptography", "llguidance", "peft",
)  # fmt: skip
SIZES: dict[str, dict[str, Any]] = {
    "1.5B": {"vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
    "8B": {"vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
           "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": False},
    "0.6B": {"vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
             "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True},
    "tiny": {"vocab_size": 8192, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True},
}  # fmt: skip
"""Shapes of Qwen3, the second and third those of its 8 B and 0.6 B."""
H100_BF16 = 989e12
"""Dense bfloat16 FLOP/s of an H100 SXM, by NVIDIA's data sheet."""


def facts(*, rehearse: bool, seconds: float) -> Iterator[dict[str, Any]]:
    """Versions, memory, and which of what the product can use is there."""
    del rehearse, seconds
    yield {
        "start_method": "spawn" if torch.cuda._is_in_bad_fork() else "fork",  # noqa: SLF001 nothing public says it
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "host_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        "packages": {name: _version(name) for name in PACKAGES},
        "varlen": None if VARLEN is None else sorted(VARLEN),
        "grad_dtype": hasattr(torch.Tensor, "grad_dtype"),
    }
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        name, bf16 = torch.cuda.get_device_name(), torch.cuda.is_bf16_supported()
        yield {"device": name, "bf16": bf16, "free_gib": free / 2**30, "total_gib": total / 2**30}
        yield {"cuda": torch.version.cuda, "flash": torch.backends.cuda.is_flash_attention_available()}
    else:
        yield {"device": "none"}


def model_of(size: str, device: str, dtype: torch.dtype = torch.float32) -> Any:
    """A random policy, made on the device: the same in each process."""
    torch.manual_seed(0)
    config = Qwen3Config(**SIZES[size], max_position_embeddings=8192)
    config.dtype = dtype
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return Qwen3ForCausalLM(config).eval().requires_grad_(requires_grad=False)
    finally:
        torch.set_default_dtype(torch.float32)


def timed(act: Callable[[], object], device: str) -> float:
    """Seconds until the device has done it."""
    wait(device)
    began = time.perf_counter()
    act()
    wait(device)
    return time.perf_counter() - began


def wait(device: str) -> None:
    """Until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


def event_ms(act: Callable[[], object], device: str) -> float:
    """Milliseconds of the device itself between two events; of the clock without a device."""
    if device != "cuda":
        return timed(act, device) * 1000
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    act()
    last.record()
    last.synchronize()
    return first.elapsed_time(last)


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """Median, least, most and number."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def peak_gib(device: str) -> float | None:
    """The most memory that this process had on the device."""
    return torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
