"""The vLLM servers of a host: the section [vllm] of millrace.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from engines.kind import FollowedSection


class VllmSettings(FollowedSection):
    """One server for each slot."""

    python: Path | None = None
    """vLLM's interpreter; `make vllm` makes one. Not needed with `urls`."""
    name: str = Field(default="vllm", pattern=r"^[a-z0-9][a-z0-9._-]*$")
    """Beginning of the replicas' names; another on each host."""
    dtype: str | None = None
    """vLLM's `--dtype`. Default: float32 on CPU, else bfloat16."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Longest prompt and answer, tokens. Default: the model's."""
    cache_gib: int = Field(default=1, ge=1)
    """Key-value cache on CPU, GiB."""
    memory: float | None = Field(default=None, gt=0, lt=1)
    """A server's share of the GPU. Default: equal parts beside the trainer."""
    threads: int | None = Field(default=None, ge=1)
    """Of a server on CPU. Default: its share of the cores; more only spin."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `vllm serve`."""

    @model_validator(mode="after")
    def _need_python(self) -> Self:
        if not self.urls and self.python is None:
            raise ValueError(
                "python is missing: the interpreter of vLLM's environment (`make vllm` makes .vllm/bin/python, `make vllm CUDA=1` for a GPU)"
            )
        return self
