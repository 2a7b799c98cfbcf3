"""What users do, declared: which signals an app may send, what each is worth, and for how long it counts."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from contracts.errors import InvalidValue
from contracts.records import Scalar
from contracts.tasks.part import Part


class SignalRule(Part):
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
