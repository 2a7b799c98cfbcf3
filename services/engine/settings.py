"""The sizes of an engine: the section [engine] of millrace.toml."""

from __future__ import annotations

from pydantic import Field, field_validator

from contracts.assignments import Slot
from runtime.settings import Section
from weights.stores.port import REMOTE


class EngineSettings(Section):
    """The engine's own settings; policy, base, device and address are settings of the home."""

    name: str | None = Field(default=None, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9._-]*$", max_length=60)
    """Name of this replica, unique among the engines of a policy. Default: host name and port."""
    url: str | None = Field(default=None, pattern=r"^http://[^/:]+:[0-9]+$")
    """Where inference reaches this replica, if not at `engine_host` and its port: `http://10.0.0.7:8401`."""
    weights: str | None = Field(default=None, pattern=REMOTE)
    """Where this replica reads versions, if not in the home's store: `http://HOST:PORT/PREFIX` of its region's cache."""
    slots: tuple[Slot, ...] = Field(default=("live", "candidate"), min_length=1)
    """The arms that this replica holds, of `live`, `candidate`, `learning`, `canary`, `holdout`; each is a copy of the model, or an adapter over
    one copy."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of one step; a trainer usually computes on the same machine."""
    page_size: int = Field(default=128, ge=16)
    """Tokens per page of the key-value cache."""
    max_batch_tokens: int = Field(default=1024, ge=16)
    """Tokens per step; a longer prompt is prefilled over several steps."""
    cache_tokens: int = Field(default=16_384, ge=256)
    """Key-value cache of one arm, in tokens. On CPU its mask takes another 4 * max_batch_tokens * cache_tokens bytes."""
    prefix_cache_bytes: int = Field(default=2**28, ge=0)
    """Memory of one arm for keys and values of ended requests, beside `cache_tokens`: a prompt that begins alike starts there. 0: none."""
    max_in_flight: int = Field(default=256, ge=1)
    """Requests per step; more wait their turn."""
    max_open_requests: int = Field(default=512, ge=1)
    """Requests of one arm that run or wait; the next one gets 429 and `Retry-After`."""
    max_open_tokens: int | None = Field(default=None, ge=1)
    """The same limit in tokens of prompts plus longest possible answers. Without it four times `cache_tokens`."""
    grammar_seconds: float = Field(default=5.0, gt=0)
    """Longest time that a schema or grammar may take to compile."""
    grammar_workers: int = Field(default=2, ge=1)
    """Processes that try new schemas and grammars; a tenant has at most one at a time."""
    grammar_seconds_per_minute: float = Field(default=20.0, gt=0)
    """Seconds of a worker that one tenant's new schemas and grammars may take per minute; the next new one gets 429."""

    @field_validator("slots")
    @classmethod
    def _once(cls, slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
        if len(set(slots)) < len(slots):
            raise ValueError(f"slots names an arm twice: {', '.join(slots)}")
        return slots
