"""A crowd whose opinions are known, and the reward worker that hears only those who speak.

In: styles of answering, each with the share of people that it helps and the share of those who give a signal. Out: what the worker made of
each style: its mean reward, and the same weighted as the trainer weighs it. Waits for: nothing; the worker is the real one, on
a database of its own.

The graders of a task look at one answer of each style; what they say stands for all the others, which have the same text.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from contracts.draws import is_asked
from contracts.event_log import LogRecord, Message
from contracts.ids import new_completion_id
from contracts.records import (
    Episode,
    Experience,
    Generation,
    GenerationBody,
    Score,
    Signal,
    Submitter,
    decode,
    encode,
    pack_body,
    pack_floats,
    pack_ids,
)
from contracts.sampling import Sampling, Span
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES
from rewards.episode import LostEpisode, UnpackedEpisode
from rewards.worker import RewardsHandler
from runtime.database import Database

START = 1_800_000_000.0
CYCLE = 100
"""Answers of a style in which its shares are exact."""
BATCH = 200


class Style(NamedTuple):
    """A way to answer. Of the people it helps, a share `speaks` gives a signal; of the others a share `unhappy_speak`, by default the same."""

    name: str
    utility: float
    speaks: float
    text: str = "42"
    version: int = 0
    unhappy_speak: float | None = None


HELPFUL = Style("helpful", 0.6, 0.6, version=1)
BLAND = Style("bland", 0.4, 0.1, version=2)
GRADED: dict[str, Any] = {
    "name": "chat",
    "window_seconds": 600,
    "silence": "expected",
    "signals": {"thumbs": {"type": "label", "labels": {"up": 1.0, "down": 0.0}}},
    "verifiers": [{"name": "right", "kind": "exact", "role": "component", "weight": 0.5}],
}
"""Half of the reward is a verifier's, half is what users say."""


class Made(NamedTuple):
    """What became of the answers of a style. Means are of those that have a reward; `weighted` as the trainer takes them."""

    num: int
    num_rewarded: int
    mean: float
    weighted: float
    total_weight: float
    """Of those that have a reward."""


def said_thumbs(*, happy: bool) -> dict[str, Any]:
    """What a person sends who is content, or not."""
    return {"name": "thumbs", "value": "up" if happy else "down"}


class SilentCrowd:
    """People who talk to several styles at once."""

    def __init__(
        self,
        database: Database,
        task: Mapping[str, Any] = GRADED,
        says: Callable[..., dict[str, Any]] = said_thumbs,
        *,
        reference: str = "42",
        seed: int = 0,
    ) -> None:
        self.task = Task.model_validate(task)
        self.database = database
        self.now = START
        self.handler = RewardsHandler({self.task.name: self.task}, lambda: self.now, database)
        self.experiences: dict[str, Experience] = {}
        self.style_of: dict[str, Style] = {}
        self._says, self._reference, self._dice = says, reference, random.Random(seed)
        self._checks: dict[str, tuple[Score, ...]] = {}

    def close(self) -> None:
        """Let go of graders."""
        self.handler.close()

    def talk(self, styles: Sequence[Style], num_cycles: int = 1, **changes: Any) -> None:
        """Each style gives `num_cycles` x 100 answers, in turn; the worker hears of each once, after its window."""
        for _ in range(num_cycles):
            told = [list(self._cycle(style, **changes)) for style in styles]
            items = [item for turn in zip(*told, strict=True) for item in turn]
            for start in range(0, len(items), BATCH):
                self.hear(items[start : start + BATCH])
            self.now += 60.0

    def hear(self, items: Sequence[Episode]) -> list[Experience]:
        """Give episodes to the worker, in one transaction; returns what it sends for them."""
        opened = [self.graded(episode) for episode in items]
        with self.database.transaction() as connection:
            sent = self.handler.handle(connection, opened)
        made = experiences_of(sent)
        self.experiences |= {item.key: item for item in made}
        return made

    def regard(self, style: Style, grader: str, value: float) -> None:
        """From now on this grader gives the style's answers this value."""
        known = self._checks_of(self._open(self.episode(self.answer(style))))
        said = msgspec.structs.replace
        self._checks[style.text] = tuple(
            said(score, value=value, status="scored", fault="none", reason="") if score.name == grader else score
            for score in known
        )

    def answer(self, style: Style, *, asked: bool | None = None, **changes: Any) -> Generation:
        """One answer of a style; `asked`: one that is drawn for asking, or is not."""
        body = GenerationBody(
            messages=[{"role": "user", "content": "a question"}],
            text=style.text,
            prompt_ids=pack_ids([1]),
            completion_ids=pack_ids([2]),
            logprobs=pack_floats([-0.5]),
            metadata={"reference": self._reference},
        )
        asking = self.task.asking
        probability = asking.probability if asking else 0.0
        completion_id = new_completion_id()
        while asked is not None and is_asked(completion_id, probability) != asked:
            completion_id = new_completion_id()
        values: dict[str, Any] = {
            "completion_id": completion_id, "choice": 0, "tenant": "default", "policy": "p", "task": self.task.name,
            "task_hash": self.task.hash, "purpose": "user", "arm": "live", "arm_probability": 1.0,
            "spans": (Span(0, style.version),), "sampling": Sampling(temperature=1.0, max_tokens=16),
            "finish_reason": "stop", "created_at": self.now - 31.0, "finished_at": self.now - 30.0, "engine": "test/1",
            "dtype": "float32", "body": pack_body(body), "ask_probability": probability,
        }  # fmt: skip
        turn = Generation(**(values | changes))
        self.style_of[turn.key] = style
        return turn

    def word(self, turn: Generation, *, happy: bool, who: str = "", **changes: Any) -> Signal:
        """What a person says of an answer."""
        values: dict[str, Any] = {
            "id": f"fb_{turn.completion_id}", "completion_id": turn.completion_id, "choice": 0, "tenant": "default",
            "submitter": Submitter(id=who or f"u{self._dice.random()}", kind="user"), "at": self.now,
            "received_at": self.now,
        }  # fmt: skip
        return Signal(**(values | self._says(happy=happy) | changes))

    def episode(self, turn: Generation, *signals: Signal, revision: int = 1, **changes: Any) -> Episode:
        """A revision of an answer's episode."""
        reason: Any = "decisive" if signals else "window"
        values = {"reason": reason, "closed_at": self.now} | changes
        return Episode(key=turn.key, revision=revision, turns=(turn,), signals=signals, **values)

    def made_of(self, styles: Sequence[Style], *, since: float = 0.0) -> dict[str, Made]:
        """What became of each style, of the answers scored since."""
        found: dict[str, list[Experience]] = defaultdict(list)
        for key, experience in self.experiences.items():
            if experience.scored_at >= since:
                found[self.style_of[key].name].append(experience)
        return {style.name: _made(found[style.name]) for style in styles}

    def _cycle(self, style: Style, **changes: Any) -> Iterator[Episode]:
        num_happy = round(CYCLE * style.utility)
        shares = (style.speaks, style.speaks if style.unhappy_speak is None else style.unhappy_speak)
        people = []
        for happy, num, share in ((True, num_happy, shares[0]), (False, CYCLE - num_happy, shares[1])):
            num_speak = round(num * share)
            people += [(happy, place < num_speak) for place in range(num)]
        self._dice.shuffle(people)
        for happy, speaks in people:
            turn = self.answer(style, **changes)
            yield self.episode(turn, *([self.word(turn, happy=happy)] if speaks else []))

    def _open(self, episode: Episode) -> UnpackedEpisode:
        return _carried(self.handler.read(LogRecord(EPISODES, 0, 0, episode.key, encode(episode), 0.0)))

    def _checks_of(self, item: UnpackedEpisode) -> tuple[Score, ...]:
        if item.body.text not in self._checks:
            self._checks[item.body.text] = _carried(self.handler.prepare([item])[0]).grader_scores
        return self._checks[item.body.text]

    def graded(self, episode: Episode) -> UnpackedEpisode:
        """As the worker has it before its transaction."""
        item = self._open(episode)
        return item._replace(grader_scores=self._checks_of(item))


def experiences_of(messages: Sequence[Message]) -> list[Experience]:
    """Among what a worker sends."""
    return [decode(Experience, message.value) for message in messages if message.topic == EXPERIENCES]


def is_imputed(experience: Experience) -> bool:
    """Whether others' words stand for one that did not come."""
    return any(score.grader.startswith("signal/expected/") for score in experience.scores)


def _made(experiences: Sequence[Experience]) -> Made:
    pairs = [(item.weight, item.reward) for item in experiences if item.reward is not None]
    total = sum(weight for weight, _ in pairs)
    return Made(
        num=len(experiences),
        num_rewarded=len(pairs),
        mean=sum(reward for _, reward in pairs) / max(len(pairs), 1),
        weighted=sum(weight * reward for weight, reward in pairs) / total if total else 0.0,
        total_weight=total,
    )


def _carried(item: UnpackedEpisode | LostEpisode) -> UnpackedEpisode:
    """These episodes carry their answers, so none is lost."""
    if isinstance(item, LostEpisode):
        raise TypeError(item.episode.key)
    return item
