"""What a front desk does, in three tasks of one home: whole bookings (`json_exact`), how many come (a function of its own), and
when (a judge).

All answer the demo's sentences, so the demo's policy does them as it is: it reads numbers and times wrong now and then. Streams are
endless, deterministic and torch-free, and those of users and sentinels never overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

from examples.reservations.sentences import Booking, requests

TASKS = ("reservations", "parties", "times")
SEED = 1
"""Of the people. Sentinels are of another split."""
_NUM_JUDGED = 3000
_PRODUCT = Path(__file__).parents[3] / "examples" / "reservations" / "task.toml"


class DeskWork(NamedTuple):
    """One piece of work: what somebody writes, and the booking that is meant."""

    task: str
    text: str
    booking: Booking

    def is_right(self, answer: str) -> bool:
        """What a user of the task accepts."""
        if self.task == "reservations":
            return answer == self.booking.json()
        part, wanted = ("party", self.booking.party) if self.task == "parties" else ("time", self.booking.time)
        return said(answer, part) == wanted


def pieces(task: str, split: Literal["users", "sentinel"]) -> Iterator[DeskWork]:
    """The work of one task."""
    for request in requests(split, SEED + TASKS.index(task)):
        yield DeskWork(task, request.sentence, request.booking)


def said(answer: str, part: str) -> object:
    """One value of a booking as somebody wrote it; None if there is none."""
    try:
        found = json.loads(answer)
    except ValueError:
        return None
    return found.get(part) if isinstance(found, dict) else None


class TimeJudge:
    """Says of an answer whether its time is the one that was asked for. A question of nobody has no right answer. `passed`: how many were right."""

    def __init__(self) -> None:
        streams = (pieces("times", split) for split in ("users", "sentinel"))
        self._times = {piece.text: piece for stream in streams for piece in islice(stream, _NUM_JUDGED)}
        self.passed = 0

    def passes(self, conversation: str, answer: str) -> bool:
        """`conversation`: as judges read it."""
        piece = self._times.get(conversation.removeprefix("user: "))
        is_right = piece is not None and piece.is_right(answer)
        self.passed += is_right
        return is_right


def write_sentinels(path: Path, count: int) -> Path:
    """`count` sentinels of each task; the judged ones have no reference: the judge needs none."""
    lines = []
    for task in TASKS:
        for piece in islice(pieces(task, "sentinel"), count):
            sentinel = {"task": task, "messages": [{"role": "user", "content": piece.text}]}
            lines.append(json.dumps(sentinel if task == "times" else sentinel | {"reference": reference(piece)}))
    path.write_text("\n".join(lines) + "\n")
    return path


def reference(piece: DeskWork) -> str:
    """What a verifier compares with."""
    return str(piece.booking.party) if piece.task == "parties" else piece.booking.json()


def write_tasks(folder: Path, judge_url: str) -> list[Path]:
    """Three task files, the first of the default task; and the function that one of them names."""
    (folder / "counting.py").write_text(_COUNTING)
    texts = {
        "reservations": _PRODUCT.read_text(),
        "parties": _PARTIES,
        "times": _TIMES.replace("JUDGE_URL", judge_url),
    }
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    return [folder / f"{name}.toml" for name in texts]


_COUNTING = """\
import json


def counted(completions, party, **columns):
    return [float(number_of(said[0]["content"]) == wanted) for said, wanted in zip(completions, party, strict=True)]


def number_of(answer):
    try:
        return str(json.loads(answer)["party"])
    except (ValueError, TypeError, KeyError):
        return None
"""

_PARTIES = """\
name = "parties"
window_seconds = 10
consent = "train"

[sampling]
temperature = 0.5
max_tokens = 32

[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }

[[verifiers]]
name = "counted"
kind = "function"
role = "watch"
config = { path = "counting.py:counted", reference_column = "party" }

[gate]
graders = ["counted"]
"""

_TIMES = """\
name = "times"
window_seconds = 10
consent = "train"

[sampling]
temperature = 0.7
max_tokens = 32

[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }

[[judges]]
name = "timely"
role = "component"
weight = 0.5
url = "JUDGE_URL"
model = "judge-1"
criteria = "Is the time the one that was asked for?"
admission = "timely.json"

[gate]
graders = ["timely"]
"""
