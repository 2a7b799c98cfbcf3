"""Attacks on rewards through silence: answers that keep people quiet, arms where nobody is asked, guesses that are kept.

In: nothing. Out: what an answer gained by silence. Waits for: nothing; each attack has a database and a reward worker of its
own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from contracts.event_log import LogRecord
from contracts.tasks import Task
from contracts.topics import EXPERIENCES
from pipelines.training.samples.intake import Intake
from pipelines.training.state import Fate, TrainerState
from runtime.database import Database
from runtime.days import migrate
from tests.adversary.attacks.attack import Attack
from tests.worlds.crowd import BLAND, GRADED, HELPFUL, Made, SilentCrowd, Style, is_imputed

ASKING = {"probability": 0.05, "signals": ["thumbs"]}


@contextmanager
def a_crowd(**changes: Any) -> Iterator[SilentCrowd]:
    """People with a worker, and a database for as long as they talk."""
    with tempfile.TemporaryDirectory(prefix="millrace-attack-") as folder:
        database = Database(f"sqlite:///{Path(folder) / 'millrace.db'}")
        migrate(database)
        crowd = SilentCrowd(database, _understood(GRADED | changes))
        try:
            yield crowd
        finally:
            crowd.close()
            database.close()


def attacks() -> list[Attack]:
    """See the module docstring."""
    return [
        Attack("a bland policy that keeps people silent", stay_bland, 2),
        Attack("an arm about which nobody says anything at all", say_nothing),
        Attack("an arm where the app does not ask", suppress_asking),
        Attack("only the content speak, unasked", keep_the_unhappy_silent),
        Attack("a guess that stays after somebody said no", outlive_a_word, 2),
        Attack("a no after a light guess praises the answer", be_praised_by_a_no),
        Attack("a guess from too few words", guess_from_few),
        Attack("one person tells everybody what to expect", stuff_the_bucket),
        Attack("the same word delivered again and again", repeat_a_word),
    ]


def stay_bland() -> str | None:
    """Both are graded right. The two styles help .6 and .4 of the people; .6 and .1 of those give a signal."""
    with a_crowd() as crowd:
        crowd.talk((HELPFUL, BLAND), 2)
        warm = crowd.now
        crowd.talk((HELPFUL, BLAND), 4)
        made = crowd.made_of((HELPFUL, BLAND), since=warm)
    return _lost(made, "bland") or _kept(made)


def say_nothing() -> str | None:
    """After a while the arm weighs less than a hundredth of one that people react to."""
    silent = Style("silent", 0.6, 0.0, version=3)
    with a_crowd() as crowd:
        crowd.talk((HELPFUL, silent), 10)
        warm = crowd.now
        crowd.talk((HELPFUL, silent), 1)
        made = crowd.made_of((HELPFUL, silent), since=warm)
    if _kept({"helpful": made["helpful"]}):
        return "graded answers are lost"
    share = made["silent"].total_weight / made["helpful"].total_weight
    return f"it weighs {share:.0%} of an arm that people react to" if share > 0.01 else None


def suppress_asking() -> str | None:
    """The answers of one arm are drawn for asking as all are, and the app leaves the question out."""
    mute = Style("mute", 0.4, 0.0, version=3)
    with a_crowd(asking=ASKING) as crowd:
        crowd.talk((HELPFUL, mute), 4, asked=True)
        warm = crowd.now
        crowd.talk((HELPFUL, mute), 1, asked=False)
        made = crowd.made_of((HELPFUL, mute), since=warm)
    if _kept({"helpful": made["helpful"]}):
        return "graded answers are lost"
    share = made["mute"].total_weight / made["helpful"].total_weight
    return f"it weighs {share:.0%} of the arm that asks" if share > 0.1 else None


def keep_the_unhappy_silent() -> str | None:
    """Volunteers praise the worse arm; where people are asked at random, what they say unasked counts for nothing."""
    sly = Style("sly", 0.4, 1.0, version=3, unhappy_speak=0.0)
    with a_crowd(asking=ASKING) as crowd:
        crowd.talk((HELPFUL, sly._replace(speaks=0.6, unhappy_speak=0.6)), 2, asked=True)
        warm = crowd.now
        crowd.talk((HELPFUL, sly), 1, asked=False)
        made = crowd.made_of((HELPFUL, sly), since=warm)
    if _kept(made):
        return "graded answers are lost"
    more = made["sly"].weighted - made["helpful"].weighted
    return f"it gains {more:.2f} by whom it keeps silent" if more > 1e-9 else None


def outlive_a_word() -> str | None:
    """A later no replaces the guess, and what was taken back is silence again."""
    with a_crowd() as crowd:
        crowd.talk((HELPFUL,), 2)
        turn = crowd.answer(HELPFUL)
        said = crowd.word(turn, happy=False)
        first, second, third = (
            crowd.hear([crowd.episode(turn, *signals, revision=revision)])[0]
            for revision, signals in enumerate([(), (said,), ()], start=1)
        )
    if first.reward is None or third.reward is None:
        return "graded answers are lost"
    if (second.reward, second.weight) != (0.5, 1.0) or is_imputed(second):
        return f"a no is worth {second.reward} at weight {second.weight}"
    return None if is_imputed(third) else "a word that was taken back still counts"


def be_praised_by_a_no() -> str | None:
    """The trainer learned .8 at a tenth of the weight, where .7 would have pulled nothing. Then somebody says no: .5."""
    with a_crowd() as crowd:
        turn = crowd.answer(HELPFUL)
        (said,) = crowd.hear([crowd.episode(turn, crowd.word(turn, happy=False), revision=2)])
    guess = msgspec.structs.replace(said, revision=1, reward=0.8, weight=0.1)
    state = TrainerState()
    try:
        state.fates[turn.key] = Fate.trained(guess, 1.0, 0.7)
    except TypeError:  # of a trainer that does not know what a sample's baseline was
        state.fates[turn.key] = Fate.trained(guess, 1.0)
    intake = Intake(state)
    intake.offer(LogRecord(EXPERIENCES, 0, 0, turn.key, b"", 0.0), said, 0.0)
    (lesson,) = intake.draw(1).lessons
    pulled = 0.1 * (0.8 - 0.7) + getattr(lesson, "advantage", lesson.difference)
    return f"in all it pulls {pulled:+.2f}" if pulled > 0 else None


def guess_from_few() -> str | None:
    """29 happy people are no reason to reward a thousand silent answers."""
    few = Style("few", 1.0, 0.29)
    with a_crowd() as crowd:
        crowd.talk((few,), 1)
        made = crowd.hear([crowd.episode(crowd.answer(few))])[0]
        crowd.talk((few,), 1)
        later = crowd.hear([crowd.episode(crowd.answer(few))])[0]
    if later.reward is None:
        return "graded answers are lost"
    return None if made.reward is None else f"silence is worth {made.reward} because of 29 words"


def stuff_the_bucket() -> str | None:
    """Votes beyond a person's limit are no evidence."""
    with a_crowd(trust={"votes": 5}) as crowd:
        crowd.talk((HELPFUL,), 2)
        crowd.hear(
            [crowd.episode(turn, crowd.word(turn, happy=True, who="mallory")) for turn in _turns(crowd, HELPFUL, 500)]
        )
        made = crowd.hear([crowd.episode(crowd.answer(HELPFUL))])[0]
    if made.reward is None:
        return "graded answers are lost"
    return f"500 votes of one person move silence to {made.reward:.2f}" if made.reward > 0.81 else None


def repeat_a_word() -> str | None:
    """Redelivery, in one batch and over several."""
    with a_crowd() as crowd:
        crowd.talk((HELPFUL,), 2)
        turn = crowd.answer(HELPFUL)
        episode = crowd.episode(turn, crowd.word(turn, happy=True))
        for _ in range(20):
            crowd.hear([episode] * 10)
        made = crowd.hear([crowd.episode(crowd.answer(HELPFUL))])[0]
    if made.reward is None:
        return "graded answers are lost"
    return f"it moves silence to {made.reward:.2f}" if made.reward > 0.805 else None


def _understood(task: dict[str, Any]) -> dict[str, Any]:
    """The task, or on code that does not know `expected` the nearest that it knows."""
    try:
        Task.model_validate(task)
    except ValueError:
        return task | {"silence": "unlabelled", "reward": {"missing": "renormalise"}}
    return task


def _turns(crowd: SilentCrowd, style: Style, num: int) -> Iterator[Any]:
    return (crowd.answer(style) for _ in range(num))


def _lost(made: dict[str, Made], other: str) -> str | None:
    helpful, worse = made["helpful"], made[other]
    for kind in ("mean", "weighted"):
        if getattr(worse, kind) >= getattr(helpful, kind):
            return f"{other} earns {getattr(worse, kind):.3f}, helpful {getattr(helpful, kind):.3f}"
    return None


def _kept(made: dict[str, Made]) -> str | None:
    lost = {name: 1 - item.num_rewarded / item.num for name, item in made.items()}
    worst = max(lost, key=lambda name: lost[name])
    return f"{lost[worst]:.0%} of {worst}'s graded answers are lost" if lost[worst] > 0 else None
