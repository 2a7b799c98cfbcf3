"""What a front desk does, in three tasks of one home: bookings (the demo's), sums (`math`), replies (a judge).

Streams are endless, deterministic and torch-free; a text belongs to a split by a hash of itself, so that users' texts and
sentinels never overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

from examples.reservations.sentences import NAMES, confused, requests

Split = Literal["train", "users", "sentinel"]

POLITE = "thank"
"""A reply with this word is what the judge, and the users, call polite."""
ERROR_RATE = 0.5

_QUESTIONS = (
    "What is {} + {}?",
    "Add {} and {}.",
    "{} + {} = ?",
    "Please add {} to {}.",
    "{} plus {}?",
    "Sum of {} and {}?",
)


class Piece(NamedTuple):
    """One piece of work: what a user writes, the answer that is right, and one that the base policy gives too often."""

    task: str
    text: str
    right: str
    wrong: str

    def is_right(self, answer: str) -> bool:
        """What a user of the task accepts."""
        return POLITE in answer if self.task == "replies" else answer == self.right


def sums(split: Split, seed: int) -> Iterator[Piece]:
    """What two numbers below 5 add up to; the base policy is often one too high."""
    rng = Random(f"sums:{split}:{seed}")
    while True:
        first, second = rng.randrange(5), rng.randrange(5)
        text = rng.choice(_QUESTIONS).format(first, second)
        total = first + second
        if _is_of(split, text):
            yield Piece("sums", text, rf"\boxed{{{total}}}", rf"\boxed{{{total + 1}}}")


def replies(split: Split, seed: int) -> Iterator[Piece]:
    """A line to a guest; the base policy is often rude."""
    rng = Random(f"replies:{split}:{seed}")
    while True:
        name, day = rng.choice(NAMES), rng.randrange(1, 29)
        text = f"Answer {name} about day {day}."
        if _is_of(split, text):
            yield Piece("replies", text, f"Dear {name}, {POLITE} you.", f"{name}, no.")


def bookings(split: Split, seed: int) -> Iterator[Piece]:
    """The demo's own work."""
    rng = Random(f"bookings:{split}:{seed}")
    for request in requests(split, seed):
        yield Piece("reservations", request.sentence, request.booking.json(), confused(request, rng).json())


TASKS = {"reservations": bookings, "sums": sums, "replies": replies}


def _is_of(split: Split, text: str) -> bool:
    is_sentinel = blake2b(text.encode(), digest_size=8).digest()[0] % 4 == 0
    return is_sentinel == (split == "sentinel")


def write_sentinels(path: Path, count: int) -> Path:
    """`count` sentinels of each task; the judged ones have no reference: the judge needs none."""
    lines = []
    for name, stream in TASKS.items():
        pieces: dict[str, Piece] = {}
        for piece in stream("sentinel", 0):
            pieces.setdefault(piece.text, piece)
            if len(pieces) == count:
                break
        for piece in pieces.values():
            sentinel = {"task": name, "messages": [{"role": "user", "content": piece.text}]}
            lines.append(json.dumps(sentinel if name == "replies" else sentinel | {"reference": reference(piece)}))
    path.write_text("\n".join(lines) + "\n")
    return path


def reference(piece: Piece) -> str:
    """What a verifier compares with."""
    return piece.right.removeprefix(r"\boxed{").removesuffix("}") if piece.task == "sums" else piece.right


def write_tasks(folder: Path, judge_url: str) -> list[Path]:
    """Three task files; the first is the default task."""
    texts = {
        "sums": _SUMS,
        "replies": _REPLIES.replace("JUDGE_URL", judge_url),
    }
    product = Path(__file__).parents[3] / "examples" / "reservations" / "task.toml"
    paths = [folder / "reservations.toml"]
    paths[0].write_text(product.read_text())
    for name, text in texts.items():
        path = folder / f"{name}.toml"
        path.write_text(text)
        paths.append(path)
    return paths


_SUMS = """\
name = "sums"
window_seconds = 10
consent = "train"

[sampling]
temperature = 1.0
max_tokens = 16

[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }

[[verifiers]]
name = "value"
kind = "math"
role = "watch"

[gate]
graders = ["value"]
"""

_REPLIES = """\
name = "replies"
window_seconds = 10
consent = "train"

[sampling]
temperature = 0.8
max_tokens = 24

[signals.accepted]
type = "bool"
labels = { true = 1.0, false = 0.0 }

[[judges]]
name = "polite"
role = "component"
weight = 0.5
url = "JUDGE_URL"
model = "judge-1"
criteria = "Is the reply polite?"
admission = "polite.json"

[gate]
graders = ["polite"]
"""
