"""The section [signals]: which signals an app may send, what each is worth, and for how long it counts."""

from __future__ import annotations

from typing import Any, Literal, Self, get_args

from pydantic import Field, model_validator

from contracts.errors import InvalidValue
from contracts.records import Scalar
from contracts.tasks.section import TaskSection

Meaning = Literal[
    "accept", "reject", "shown", "edit", "regenerate", "copy", "thumbs", "follow_up", "outcome", "abandoned"
]  # fmt: skip

DAY = 86_400.0
THRESHOLD = 0.25
"""t: an answer is worth showing if users accept it more often than this. Rewards: 1 - t accepted, -t refused, 0 not shown."""


class SignalRule(TaskSection):
    """One declared signal. If several are present, the one declared first decides the reward."""

    means: Meaning | None = None
    """What the user did. Sets defaults for all other fields (table in docs/rewards.md)."""
    threshold: float = Field(default=THRESHOLD, gt=0, lt=1)
    """t of accept, reject, shown and edit."""
    type: Literal["bool", "number", "label", "text"]
    """Type of its `value`."""
    labels: dict[str, float] = Field(default_factory=dict)
    """Reward of each value: `true` and `false` for bool, the label itself for label."""
    minimum: float = 0.0
    """number: the value worth the first of `ends`."""
    maximum: float = 1.0
    """number: the value worth the second of `ends`."""
    ends: tuple[float, float] = (0.0, 1.0)
    """number: the rewards of minimum and maximum; between them it is linear."""
    reward: float | None = None
    """text: the reward if the signal is present. Default: the text is stored, without a reward."""
    decisive: bool = True
    """True: its arrival closes the episode at once."""
    window_seconds: float | None = Field(default=None, gt=0)
    """How long it counts, from the end of the answer. Default: the task's window. If it is longer, the reward at the end of
    the task's window is provisional."""
    min_seconds: float = Field(default=0.0, ge=0)
    """A signal sooner after the end of the answer counts as a mistake, without a reward."""

    @model_validator(mode="before")
    @classmethod
    def _mean(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("means") not in MEANINGS:
            return given
        threshold = given.get("threshold", THRESHOLD)
        numeric = isinstance(threshold, int | float) and not isinstance(threshold, bool)
        return {**defaults_of(given["means"], float(threshold) if numeric else THRESHOLD), **given}

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
        """Raises InvalidValue if `value` has the wrong type or label. A bool may also be said as 1 or 0."""
        if self.type == "bool":
            fits = not isinstance(value, str) and value in {0, 1}
        elif self.type == "number":
            fits = not isinstance(value, bool | str)
        else:
            fits = isinstance(value, str)
        if not fits:
            takes = "bool (true, false, 1 or 0)" if self.type == "bool" else self.type
            raise InvalidValue(f"signal {name!r} takes a {takes}, not {type(value).__name__} {value!r}", param="value")
        if self.type == "label" and value not in self.labels:
            raise InvalidValue(f"signal {name!r} takes one of {sorted(self.labels)}, not {value!r}", param="value")

    def reward_of(self, value: Scalar) -> float | None:
        """The reward of a value that passed `check`; None if this signal has no reward by itself."""
        if self.type == "number":
            share = min(1.0, max(0.0, (float(value) - self.minimum) / (self.maximum - self.minimum)))
            return self.ends[0] + (self.ends[1] - self.ends[0]) * share
        if self.type == "text":
            return self.reward
        return self.labels.get(str(bool(value)).lower() if self.type == "bool" else str(value))

    def takes(self, value: Scalar) -> bool:
        """Whether `check` passes. It may fail for signals of another task, or from before a change of the task file."""
        try:
            self.check("", value)
        except InvalidValue:
            return False
        return True

    def is_worth_something(self, value: Scalar) -> bool:
        """Whether a value has a reward."""
        return self.takes(value) and (self.depends_on_answer or self.reward_of(value) is not None)

    @property
    def depends_on_answer(self) -> bool:
        """True if the reward depends on how much of the answer the user kept."""
        return self.means == "edit" and self.reward is None

    @property
    def worths(self) -> tuple[float, ...]:
        """The possible rewards, or the ends of their range."""
        if self.depends_on_answer:
            return (-self.threshold, 1.0 - self.threshold)
        if self.type == "number":
            return self.ends
        if self.type == "text":
            return () if self.reward is None else (self.reward,)
        return tuple(self.labels.values())


MEANINGS: frozenset[str] = frozenset(get_args(Meaning))


def defaults_of(means: str, threshold: float) -> dict[str, Any]:
    """The table of meanings, on a scale from -1 to 1."""
    table: dict[str, dict[str, Any]] = {
        "accept": {"type": "bool", "labels": {"true": 1.0 - threshold, "false": -threshold}},
        "reject": {"type": "bool", "labels": {"true": -threshold}},
        "shown": {"type": "bool", "labels": {"true": -threshold / 2}, "decisive": False},
        "edit": {"type": "text"},
        "regenerate": {"type": "bool", "labels": {"true": -0.5}, "min_seconds": 2.0},
        "copy": {"type": "number", "ends": (0.0, 0.3), "decisive": False},
        "thumbs": {"type": "label", "labels": {"up": 1.0, "down": -1.0}, "window_seconds": 7 * DAY},
        "follow_up": {"type": "text", "decisive": False},
        "outcome": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}, "window_seconds": 21 * DAY},
        "abandoned": {"type": "bool", "labels": {"true": -0.2}, "window_seconds": 1800.0, "decisive": False},
    }
    return table[means]
