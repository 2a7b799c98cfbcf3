"""Answers of a small product whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pipelines.release.train.answers import AnswerRow, TaskRule
from pipelines.release.train.sequences import expected_share
from pipelines.release.train.strata import Standing
from runtime.train_settings import TrainSettings

NOON = 1_800_000_000.0
"""A departure, at the beginning of a half hour."""
RULES = {"chat": TaskRule(has_primary=True, age_seconds=60.0)}
SETTINGS = TrainSettings(margin=0.03)
FACTS = ("truncated", "errors", "cancelled", "empty", "refuses", "misshapen", "invalid_tool_call")
LATER = NOON + 1000.0
LAST = len(SETTINGS.stages) - 1


def standing(stage: int = LAST, state: str = "canary", stage_at: float = NOON) -> Standing:
    return Standing(stage=stage, stage_at=stage_at, started_at=NOON, state=state)


def answer(number: int, arm: str, *, share: float = 0.5, at: float = NOON + 10.0, **changes: object) -> AnswerRow:
    """An answer that was judged well. `share`: of the canary."""
    row = AnswerRow(
        key=f"{arm}-{number}",
        arm=arm,
        task="chat",
        unit=f"{arm} person {number}",
        unit_kind="user",
        cluster="",
        sampling="t1",
        probability=0.95 * (share if arm == "canary" else 1.0 - share),
        at=at,
        metrics={**dict.fromkeys(FACTS, 0.0), "tokens": 4.0, "seconds": 0.0, "heard": 1.0},
        reward=1.0,
        status="scored",
        scored_at=at + 30.0,
    )
    return row._replace(**changes)  # type: ignore[arg-type] # as the caller names them


def product(
    seed: int = 0,
    num: int = 8000,
    *,
    share: float = 0.5,
    seconds: float = 600.0,
    reward: tuple[float, float] = (0.8, 0.8),
    faults: tuple[float, float] = (0.02, 0.02),
    speaks: tuple[float, float] = (0.7, 0.7),
) -> Iterator[AnswerRow]:
    """Answers at random times. Pairs are of live and of the canary: mean reward, share that is cut off, share that is spoken of."""
    draw = random.Random(seed)
    for number in range(num):
        is_canary = draw.random() < share
        arm = "canary" if is_canary else "live"
        heard = draw.random() < speaks[is_canary]
        facts = {name: float(draw.random() < 0.02) for name in FACTS}
        facts |= {"tokens": draw.gauss(4.0, 0.6), "seconds": draw.gauss(0.0, 0.4), "heard": float(heard)}
        facts["truncated"] = float(draw.random() < faults[is_canary])
        yield answer(
            number,
            arm,
            share=share,
            at=NOON + draw.random() * seconds,
            metrics=facts,
            reward=float(draw.random() < reward[is_canary]) if heard else None,
            status="scored" if heard else "unlabelled",
        )


def regulars(
    num: int = 1000, times: int = 10, *, fails: float = 0.0, lost: float = 0.0, share: float = 0.5, seed: int = 0
) -> Iterator[AnswerRow]:
    """People who come back `times` times. In the canary the share `fails` of their answers fails, and `lost` leaves no record."""
    draw = random.Random(seed)
    for number in range(num):
        arm = "canary" if draw.random() < expected_share(share, SETTINGS.control_ratio) else "live"
        for time in range(draw.randint(1, 2 * times - 1)):
            failed, gone = draw.random() < fails, draw.random() < lost
            at = NOON + draw.random() * 600.0
            if arm == "canary" and gone:
                continue
            row = answer(number, arm, share=share, at=at, key=f"{number}-{time}", reward=float(draw.random() < 0.8))
            if arm == "canary" and failed:
                row = row._replace(metrics={"errors": 1.0}, reward=None, status="", scored_at=None)
            yield row
