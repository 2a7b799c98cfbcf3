"""The vLLM servers of a host: the section [vllm] of millrace.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from engines.following.settings import FollowedSection


class VllmSettings(FollowedSection):
    """One server for each slot."""

    python: Path | None = None
    """The interpreter of the environment in which vLLM is installed; `make vllm` makes one. Not needed with `urls`."""
    name: str = Field(default="vllm", pattern=r"^[a-z0-9][a-z0-9._-]*$")
    """Beginning of the names of the replicas; another one for each host."""
    dtype: str | None = None
    """vLLM's `--dtype`. Default: float32 on CPU, which holds every checkpoint's bits; else bfloat16."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Longest prompt and answer, tokens. Default: what the model allows."""
    cache_gib: int = Field(default=1, ge=1)
    """Memory of the key-value cache on CPU, GiB."""
    threads: int | None = Field(default=None, ge=1)
    """Threads in which one server computes on CPU. Default: the cores divided among the servers. With more, each waits spinning for
    the others' threads."""
    arguments: tuple[str, ...] = ()
    """Further arguments of `vllm serve`."""

    @model_validator(mode="after")
    def _need_python(self) -> Self:
        if not self.urls and self.python is None:
            raise ValueError(
                "python is missing: the interpreter of vLLM's environment (`make vllm` makes .vllm/bin/python)"
            )
        return self
