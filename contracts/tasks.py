"""The schema of a task file: a unit of product behaviour, declared in TOML, validated at start, hashed into every score.

A task says which signals an app may send, what they are worth, which verifiers look at the answer, how it all combines,
who chooses the sampling, and what silence means. Verifiers are named here and resolved in `rewards`.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from contracts.errors import InvalidTask, InvalidValue
from contracts.records import Scalar


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class SamplingRule(_Part):
    """Who chooses how answers are sampled."""

    owner: Literal["task", "caller"] = "task"
    """`task`: the values below replace the caller's, so that every answer can be learned from; `caller`: they are
    defaults."""
    temperature: float = Field(default=1.0, ge=0, le=2)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Below 1 answers are off support: logged, never trained."""
    max_tokens: int = Field(default=256, ge=1)
    """Longest answer, in tokens."""


class SignalRule(_Part):
    """One declared signal. Where several are present, the one declared first decides the reward."""

    type: Literal["bool", "number", "label", "text"]
    """What its `value` must be."""
    labels: dict[str, float] = Field(default_factory=dict)
    """Reward of each value: `true` and `false` for bool, the label itself for label."""
    minimum: float = 0.0
    """number: the value worth reward 0."""
    maximum: float = 1.0
    """number: the value worth reward 1."""
    reward: float | None = None
    """text: the reward of its presence; without it the text is kept but worth nothing."""
    decisive: bool = True
    """True: the episode closes at once when it arrives."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.type == "bool" and set(self.labels) - {"true", "false"}:
            raise ValueError("labels of a bool signal are `true` and `false`")
        if self.type in {"bool", "label"} and not self.labels:
            raise ValueError(f"a {self.type} signal needs `labels`, the reward of each value")
        if self.maximum <= self.minimum:
            raise ValueError("maximum must be above minimum")
        return self

    def check(self, name: str, value: Scalar) -> None:
        """Raises InvalidValue if `value` is not what this signal carries."""
        kinds: dict[str, tuple[type, ...]] = {"bool": (bool,), "number": (int, float), "label": (str,), "text": (str,)}
        wrong_bool = isinstance(value, bool) and self.type != "bool"
        if wrong_bool or not isinstance(value, kinds[self.type]):
            raise InvalidValue(
                f"signal {name!r} takes a {self.type}, not {type(value).__name__} {value!r}", param="value"
            )
        if self.type == "label" and value not in self.labels:
            raise InvalidValue(f"signal {name!r} takes one of {sorted(self.labels)}, not {value!r}", param="value")

    def reward_of(self, value: Scalar) -> float | None:
        """The reward of a value that passed `check`; None if this signal is worth nothing by itself."""
        if self.type == "number":
            share = (float(value) - self.minimum) / (self.maximum - self.minimum)
            return min(1.0, max(0.0, share))
        if self.type == "text":
            return self.reward
        return self.labels.get(str(value).lower() if self.type == "bool" else str(value))


class VerifierRule(_Part):
    """One check of the answer."""

    name: str
    """How its score is called."""
    kind: str
    """Which verifier: `json_schema` or `json_exact`."""
    role: Literal["gate", "component", "watch"] = "gate"
    """gate: a failure makes the reward the worst one; component: part of the weighted mean; watch: kept, worth
    nothing."""
    weight: float = Field(default=1.0, ge=0)
    """Weight of a component."""
    config: dict[str, Any] = Field(default_factory=dict)
    """What the kind needs, for example `schema`."""


class Task(_Part):
    """A whole task file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    """How a request names it in `metadata.task`."""
    window_seconds: float = Field(default=600.0, gt=0)
    """How long signals are waited for, counted from the end of the answer."""
    consent: Literal["train", "none"] = "train"
    """What an absent `store` means: log and train, or neither."""
    silence: Literal["unlabelled"] | float = "unlabelled"
    """What it means when no decisive signal came: no reward, or this one."""
    baseline_key: Literal["task", "tenant"] = "task"
    """Which samples share a baseline."""
    sampling: SamplingRule = SamplingRule()
    signals: dict[str, SignalRule] = Field(min_length=1)
    verifiers: tuple[VerifierRule, ...] = ()

    @cached_property
    def hash(self) -> str:
        """Twelve hex digits over the whole content; it stands in every score."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.blake2b(content.encode(), digest_size=6).hexdigest()

    def signal(self, name: str) -> SignalRule:
        """The rule of a declared signal.

        Raises:
            InvalidValue: this task declares no such signal.
        """
        if name not in self.signals:
            raise InvalidValue(
                f"task {self.name!r} declares no signal {name!r}; it has {sorted(self.signals)}", param="name"
            )
        return self.signals[name]


def load_tasks(paths: tuple[Path, ...]) -> dict[str, Task]:
    """Read and validate task files, in order; the first is the default.

    Raises:
        InvalidTask: with file, line and field of the first mistake, or a name that two files share.
    """
    tasks: dict[str, Task] = {}
    for path in paths:
        task = _load(path)
        if task.name in tasks:
            raise InvalidTask(f"{path}: task {task.name!r} is declared twice")
        tasks[task.name] = task
    return tasks


def _load(path: Path) -> Task:
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidTask(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InvalidTask(f"{path}:{line}: not UTF-8 ({error.reason}); save the file as UTF-8") from error
    try:
        return Task.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise InvalidTask(f"{path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        location = tuple(part for part in first["loc"] if part not in {"float", "constrained-float"})
        present = location[:-1] if first["type"] == "missing" else location
        raise InvalidTask(
            f"{path}:{_line_of(text, present)}: {'.'.join(map(str, location))}: {first['msg']}"
        ) from error


def _line_of(text: str, location: tuple[int | str, ...]) -> int:
    """The line of a field, or of its closest parent that stands in the file; lines count from 1."""
    lines = text.splitlines()
    line = 0
    for index, part in enumerate(location):
        if isinstance(part, int):
            continue
        following = location[index + 1] if index + 1 < len(location) else 0
        nth = following if isinstance(following, int) else 0  # the nth [[table]] of an array
        pattern = re.compile(rf"\s*(\[+[^\]]*\b{re.escape(part)}\]+|{re.escape(part)}\s*=)")
        found = [number for number in range(line, len(lines)) if pattern.match(lines[number])]
        if found:
            line = found[min(nth, len(found) - 1)]
    return line + 1
