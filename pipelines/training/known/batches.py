"""The rows of one step: samples, corrections of earlier samples, and the text that belongs to both. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from contracts.records import Experience
from pipelines.training.text.samples import NO_TEXT, TextBatch, TextSample

if TYPE_CHECKING:
    from collections.abc import Container, Mapping


@dataclass(frozen=True)
class Lesson:
    """A correction: a trained sample whose newest revision has another value. Today's baselines, whitening and batch size do not enter.

    In total, the sample then pulls as its last revision alone would have.
    """

    experience: Experience
    difference: float
    """The value of the newest revision minus what was applied, in weight x reward."""
    pull: float
    """The factor from one unit to each token's pull when the sample was trained."""
    owed: float = 0.0
    """If the weight rose, the added weight must also subtract the first baseline. Without it, a bad reward after a guess of little weight
    would reinforce the answer."""

    @property
    def advantage(self) -> float:
        """The pull on each token, in units of `pull`."""
        return self.difference - self.owed


@dataclass(frozen=True)
class Batch:
    """The rows of one step, sorted by key: the gradient does not depend on the order of reading."""

    samples: Sequence[Experience]
    lessons: Sequence[Lesson]
    text: TextBatch = NO_TEXT
    """Of these samples and corrections."""

    @property
    def everything(self) -> list[Experience]:
        """The experiences of samples, then of corrections."""
        return [*self.samples, *(lesson.experience for lesson in self.lessons)]

    @property
    def keys(self) -> list[str]:
        """In the order of `everything`."""
        return [item.key for item in self.everything]

    @property
    def rewarded(self) -> Batch:
        """The samples and corrections whose rewards are learned. Of the others only the text is."""
        samples = [item for item in self.samples if item.streams is None or item.streams.rl > 0]
        return replace(self, samples=samples, lessons=[item for item in self.lessons if item.pull])

    def weights(self, by_key: Mapping[str, float]) -> list[float]:
        """The weights of the samples, in their order."""
        return [by_key[item.key] for item in self.samples]

    def parts(self) -> list[Batch]:
        """One batch for each sample and each correction, with its text."""
        texts: dict[str, list[TextSample]] = {}
        for item in self.text.samples:
            texts.setdefault(item.key, []).append(item)
        parts = [*(Batch([item], []) for item in self.samples), *(Batch([], [lesson]) for lesson in self.lessons)]
        counts = self.text.counts
        return [replace(part, text=TextBatch(texts.get(part.keys[0], ()), counts)) for part in parts]

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        """Invert `parts`."""
        return cls(
            [item for part in parts for item in part.samples],
            [item for part in parts for item in part.lessons],
            TextBatch.joined([part.text for part in parts]),
        )

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
