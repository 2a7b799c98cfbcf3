"""What a batch is made of, samples and corrections, and what each becomes after its step. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipelines.training.batch import newest_version, num_tokens
from pipelines.training.intake import is_learnable, worth
from pipelines.training.state import Fate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from contracts.records import Experience
    from pipelines.training.intake import Intake


@dataclass(frozen=True)
class Lesson:
    """A sample that was learned before and is worth something else since.

    `difference` is what its newest revision is worth less what was applied, in weight x reward; `pull` is what one unit
    was multiplied by at each token when it was learned. No baseline of now, no whitening, no staleness and no denominator
    of the batch it meets stand between them. `owed`: a sample that weighs more than before owes its first baseline for the
    rest of the weight, else a bad word after a light guess would praise the answer. So what the sample pulls in all is what
    its last revision alone would have pulled.
    """

    experience: Experience
    difference: float
    pull: float
    owed: float = 0.0

    @property
    def advantage(self) -> float:
        """What each token pulls, in units of `pull`."""
        return self.difference - self.owed


@dataclass(frozen=True)
class Batch:
    """One step's worth, in the order of keys: the gradient does not depend on the order in which they were read."""

    samples: Sequence[Experience]
    lessons: Sequence[Lesson]

    @property
    def everything(self) -> list[Experience]:
        """Samples, then what is corrected."""
        return [*self.samples, *(lesson.experience for lesson in self.lessons)]

    @property
    def keys(self) -> list[str]:
        """In the order of `everything`."""
        return [item.key for item in self.everything]

    def weights(self, by_key: Mapping[str, float]) -> list[float]:
        """Of the samples, in their order."""
        return [by_key[item.key] for item in self.samples]

    def parts(self) -> list[Batch]:
        """One batch for each sample and each correction."""
        return [*(Batch([item], []) for item in self.samples), *(Batch([], [lesson]) for lesson in self.lessons)]

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        """Invert `parts`."""
        return cls([item for part in parts for item in part.samples], [item for part in parts for item in part.lessons])

    def without(self, culprits: Sequence[tuple[Batch, object]]) -> Batch:
        """The rest."""
        gone = {key for part, _ in culprits for key in part.keys}
        return Batch.joined([part for part in self.parts() if part.keys[0] not in gone])

    def half(self) -> Batch:
        """The first half, of one at least."""
        parts = self.parts()
        return Batch.joined(parts[: max(len(parts) // 2, 1)])


def draw(intake: Intake, size: int) -> Batch:
    """The oldest `size` of what waits."""
    samples, lessons = [], []
    for item in sorted(intake.waiting[:size], key=lambda item: item.experience.key):
        experience = item.experience
        if (fate := intake.corrects(experience)) is None:
            samples.append(experience)
        else:
            pull = pull_of(fate, experience, size)
            lessons.append(
                Lesson(experience, worth(experience) - (fate.applied_now or 0.0), pull, fate.owed(experience.weight))
            )
    return Batch(samples, lessons)


def pull_of(fate: Fate, experience: Experience, batch_size: int) -> float:
    """What one unit of a trained sample's reward pulled at each token.

    Older checkpoints do not know how many tokens its batch had: it counts as a full one of answers as long as this.
    """
    if fate.pull is not None:
        return fate.pull
    return fate.scale / max(batch_size * num_tokens([experience]), 1)


def sample_fate(experience: Experience, skipped: str, pull: float, zero: float | None = None) -> Fate:
    """After its step; `skipped` is the guard's reason, `pull` what one unit of reward was multiplied by at each token.

    `zero`: the reward that would have pulled nothing.
    """
    if skipped:
        return Fate(experience.revision, "quarantined", skipped)
    return Fate(
        experience.revision, "trained", applied=worth(experience), pull=pull, weight=experience.weight, zero=zero
    )


def lesson_fate(lesson: Lesson, before: Fate, skipped: str) -> Fate:
    """After its step; what the guard skipped was not applied, and the sample stays as it was learned."""
    revision = lesson.experience.revision
    if skipped:
        return before.passed_over(revision, "correction_quarantined")
    return before.corrected(revision, worth(lesson.experience), lesson.experience.weight)


class NullMass:
    """How much of what was read had no reward, by the version that wrote it: a policy may learn to go unscored."""

    def __init__(self) -> None:
        self._read: Counter[int] = Counter()
        self._null: Counter[int] = Counter()

    def add(self, experience: Experience) -> None:
        """Count one that a user's generation gave rise to."""
        if experience.purpose == "user":
            version = newest_version(experience)
            self._read[version] += 1
            self._null[version] += not is_learnable(experience)

    def take(self) -> dict[str, float | dict[str, float]]:
        """The shares since the last time, in all and by version."""
        figures: dict[str, float | dict[str, float]] = {
            "null_mass": self._null.total() / max(self._read.total(), 1),
            "null_mass_of_version": {str(item): self._null[item] / num for item, num in sorted(self._read.items())},
        }
        self._read.clear()
        self._null.clear()
        return figures
