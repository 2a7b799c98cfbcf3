"""The samples and corrections of a batch, and the fate of each after its step. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from contracts.records import Experience
from pipelines.training.learning.batch import episode_of, group_of, newest_version, num_tokens
from pipelines.training.samples.intake import is_learnable, worth
from pipelines.training.state import Fate

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from pipelines.training.samples.intake import Intake


@dataclass(frozen=True)
class Lesson:
    """A correction: a trained sample whose newest revision has another value.

    `difference` is the value of the newest revision minus what was applied, in weight x reward. `pull` is the factor from one
    unit to each token's pull when the sample was trained. Today's baselines, whitening and batch size do not
    enter. `owed`: if the weight rose, the added weight must also subtract the first baseline. Without it, a bad reward after a
    guess of little weight would reinforce the answer. In total, the sample then pulls as its last revision alone would have.
    """

    experience: Experience
    difference: float
    pull: float
    owed: float = 0.0

    @property
    def advantage(self) -> float:
        """The pull on each token, in units of `pull`."""
        return self.difference - self.owed


@dataclass(frozen=True)
class Batch:
    """The rows of one step, sorted by key: the gradient does not depend on the order of reading."""

    samples: Sequence[Experience]
    lessons: Sequence[Lesson]

    @property
    def everything(self) -> list[Experience]:
        """The experiences of samples, then of corrections."""
        return [*self.samples, *(lesson.experience for lesson in self.lessons)]

    @property
    def keys(self) -> list[str]:
        """In the order of `everything`."""
        return [item.key for item in self.everything]

    def weights(self, by_key: Mapping[str, float]) -> list[float]:
        """The weights of the samples, in their order."""
        return [by_key[item.key] for item in self.samples]

    def parts(self) -> list[Batch]:
        """One batch for each sample and each correction."""
        return [*(Batch([item], []) for item in self.samples), *(Batch([], [lesson]) for lesson in self.lessons)]

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        """Invert `parts`."""
        return cls([item for part in parts for item in part.samples], [item for part in parts for item in part.lessons])

    def without(self, culprits: Sequence[tuple[Batch, object]]) -> Batch:
        """The batch without the culprits."""
        gone = {key for part, _ in culprits for key in part.keys}
        return Batch.joined([part for part in self.parts() if part.keys[0] not in gone])

    def only(self, keys: Container[str]) -> Batch:
        """The samples and corrections with these keys."""
        return Batch.joined([part for part in self.parts() if part.keys[0] in keys])

    def half(self) -> Batch:
        """The first half; at least one row."""
        parts = self.parts()
        return Batch.joined(parts[: max(len(parts) // 2, 1)])


def draw(intake: Intake, size: int, is_old: Callable[[Experience], bool] = lambda _: False) -> Batch:
    """A batch of `size` waiting samples, in the order of arrival; at most a quarter of `size` (one at least) is old.

    Calls of a session that was judged as a whole are taken together, so that their common tokens are computed once and one
    baseline serves all: the last session may exceed `size`. Sessions of one group follow each other, as far as they fit. Old samples that find no place wait for the next batch. If fresh
    samples are missing, the batch is small.
    """
    chosen: dict[str, Experience] = {}
    waiting = [item.experience for item in intake.waiting]
    together: dict[str, list[Experience]] = defaultdict(list)
    groups: dict[str, int] = {}
    for place, experience in enumerate(waiting):
        together[episode_of(experience)].append(experience)
        groups.setdefault(group_of(experience) or experience.key, place)
    waiting.sort(key=lambda each: groups[group_of(each) or each.key])
    places_for_old = max(size // 4, 1)
    for first in waiting:
        if len(chosen) >= size:
            break
        for experience in together.pop(episode_of(first), ()):
            if is_old(experience):
                if not places_for_old:
                    continue
                places_for_old -= 1
            chosen[experience.key] = experience
    samples, lessons = [], []
    for experience in sorted(chosen.values(), key=lambda each: each.key):
        if (fate := intake.corrects(experience)) is None:
            samples.append(experience)
        else:
            pull = pull_of(fate, experience, size)
            lessons.append(
                Lesson(experience, worth(experience) - (fate.applied_now or 0.0), pull, fate.owed(experience.weight))
            )
    return Batch(samples, lessons)


def pull_of(fate: Fate, experience: Experience, batch_size: int) -> float:
    """The factor from one unit of a trained sample's reward to the pull on each token.

    Older checkpoints do not know how many tokens the batch had: it then counts as a full batch of answers of this length.
    """
    if fate.pull is not None:
        return fate.pull
    return fate.scale / max(batch_size * num_tokens([experience]), 1)


def sample_fate(experience: Experience, pull: float, zero: float | None = None) -> Fate:
    """The fate of a sample after its step.

    `pull`: the factor from reward to each token's pull. `zero`: the reward with advantage 0.
    """
    return Fate(
        experience.revision, "trained", applied=worth(experience), pull=pull, weight=experience.weight, zero=zero
    )


def lesson_fate(lesson: Lesson, before: Fate) -> Fate:
    """The fate after a correction's step."""
    return before.corrected(lesson.experience.revision, worth(lesson.experience), lesson.experience.weight)


class NullMass:
    """Shares of records without a reward, per version that generated them: a policy may learn to avoid scoring."""

    def __init__(self) -> None:
        self._read: Counter[int] = Counter()
        self._null: Counter[int] = Counter()

    def add(self, experience: Experience) -> None:
        """Count the experience if it is from a user's generation."""
        if experience.purpose == "user":
            version = newest_version(experience)
            self._read[version] += 1
            self._null[version] += not is_learnable(experience)

    def take(self) -> dict[str, float | dict[str, float]]:
        """The shares since the last call, in total and by version."""
        figures: dict[str, float | dict[str, float]] = {
            "null_mass": self._null.total() / max(self._read.total(), 1),
            "null_mass_of_version": {str(item): self._null[item] / num for item, num in sorted(self._read.items())},
        }
        self._read.clear()
        self._null.clear()
        return figures
