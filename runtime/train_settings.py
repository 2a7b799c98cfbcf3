"""Settings of the release train: the section [train]. Inference draws by them, release proves by them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from runtime.settings import Section

HOUR, HALF_HOUR = 3600.0, 1800.0


class TrainSettings(Section):
    """How a version that passed the gate is proven on users before everybody gets it."""

    enabled: bool = True
    """`false`: a version that passed the gate goes live at once. So it does while no engine ever had a canary slot; once there was
    a train, only `false` ends the proving."""
    unit: Literal["user", "session", "answer"] = "user"
    """What gets an arm. A request without it is drawn by the next smaller one."""
    learning_share: float = Field(default=0.05, ge=0, le=0.5)
    """Share of the users who get the newest gated version, for the trainer. Needs a learning slot."""
    stages: tuple[float, ...] = (0.01, 0.05, 0.2, 0.5)
    """Shares of the canary, rising; after the last one everybody gets the version."""
    stage_seconds: float = Field(default=60.0, ge=0)
    """The shortest time in a stage."""
    stage_units: int = Field(default=100, ge=2)
    """Fewest units (people, sessions or answers, see `unit`) of the canary that answered until a stage ends."""
    patience_seconds: float = 4.0 * HOUR
    """A ceiling, at least 3600: a train that proved nothing after this time is withdrawn, not revoked, and the next version gets
    the track. A task whose answers are compared at an age above a quarter of it gets four times that age."""
    silence_seconds: float = Field(default=300.0, gt=0)
    """Without new evidence for so long the train stops; after as long again it is withdrawn."""
    harmed_seconds: float = Field(default=HOUR, ge=0)
    """The shortest time in the last stage if the version seems worse for one tenant or key alone: until then somebody can withdraw
    it. Above `patience_seconds`: such a version is withdrawn unproven."""
    shadow_prompts: int = Field(default=500, ge=0)
    """Recent prompts that both versions answer before any user meets the new one. 0: no shadow."""
    shadow_seconds: float = Field(default=HOUR, gt=0)
    """After this time the shadow ends with the pairs that it has, if there is any."""
    level: float = Field(default=0.002, gt=0, lt=0.5)
    """Chance that a version which is not worse is rolled back: a tenth of it by its shadow, the rest over all looks and metrics of
    its canary."""
    learning_level: float = Field(default=0.0002, gt=0, lt=0.5)
    """The same for a version in the learning arm, which is judged by its fast facts alone. Smaller, because there are more of them
    than trains."""
    false_verdicts_per_year: float = Field(default=4.0, gt=0)
    """The most that the levels of all versions add up to in any 365 days: four fifths for trains, a fifth for the learning arm. A
    tenth may be spent at once, the rest comes evenly. A version gets its full level while so much is left, else what is left."""
    proof_level: float = Field(default=0.05, gt=0, lt=0.5)
    """Chance that a version which is worse by the margin arrives."""
    margin: float = Field(default=0.02, gt=0, lt=1)
    """Largest loss of reward, as a share of the reward's range, that a version may have and still arrive."""
    guardrail_margin: float = Field(default=0.05, gt=0, lt=1)
    """The same for the share of answers that are refusals, cut off or misshapen, or that get no reaction."""
    length_margin: float = Field(default=0.25, gt=0)
    """The same for tokens and seconds of an answer, as a share of them. Seconds are counted with .1 s added, since less is not felt."""
    age_seconds: float | None = Field(default=None, gt=0)
    """Age at which all answers are compared. Without it the window of the task, or a longer one of its signals up to
    `longest_age_seconds`."""
    longest_age_seconds: float = Field(default=HOUR, gt=0)
    """The default age is no longer than this, unless the task's own window is."""
    stratum_seconds: float = Field(default=HALF_HOUR, gt=0)
    """Answers are compared within so much time."""
    control_ratio: float = Field(default=4.0, ge=1)
    """Units of the live version that are compared with each unit of the canary, at most."""
    tuned_units: int = Field(default=5000, ge=10)
    """Units of each arm at which the confidence sequences are narrowest."""

    @field_validator("patience_seconds")
    @classmethod
    def _hours(cls, seconds: float) -> float:
        if not seconds >= HOUR:  # nan too
            raise ValueError(
                f"it is only a ceiling, of at least {HOUR:,.0f} s, not {seconds:g}: a train of an unharmed version goes on until it is "
                "proven; shadow_seconds ends the shadow, longest_age_seconds bounds the default age of comparison"
            )
        return seconds

    @field_validator("stages")
    @classmethod
    def _rising(cls, stages: tuple[float, ...]) -> tuple[float, ...]:
        if not stages or list(stages) != sorted(set(stages)):
            raise ValueError(f"the shares must rise, for example [0.01, 0.05, 0.2, 0.5], not {list(stages)}")
        if not (stages[0] > 0.0 and stages[-1] < 1.0):
            raise ValueError("the shares must lie between 0 and 1: at 1 no user is left to compare with")
        return stages
