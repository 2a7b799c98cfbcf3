"""Records that decode and are hostile: valid msgpack of each kind, with values in their fields that nobody expects. Seeded."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import zstandard

from contracts.event_log import Message
from contracts.ids import new_completion_id, sample_key
from contracts.records import Episode, Experience, Outcome, Record, Score, Segment, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from contracts.tasks import Task
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, SIGNALS
from contracts.wire import packed
from tests.fakes import BOOKING_TASK, a_generation, a_signal

TEXTS = (
    "",
    "\0",
    "a\0b",
    "x" * 65,
    "x" * 300,
    "é" * 5000,
    "%s %(a)s {0}",
    "'; DROP TABLE generation; --",
    "\u202e\uffff",
    "🙂" * 40,
    "NaN",
    " ",
    "\n",
)
INTEGERS = (-1, 0, 2**31 - 1, 2**31, 2**32, -(2**31) - 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63))
FLOATS = (math.nan, math.inf, -math.inf, 1e300, -1e300, 1e-320, -0.0, 253402300800.0, -62135596801.0)
BYTES = (b"", b"\0", b"\xff" * 3, b"\x00\x00\xc0\x7f" * 4, b"\xff" * 4096)
WHATEVER: tuple[Any, ...] = (None, True, [], {}, *TEXTS, *INTEGERS, *FLOATS, *BYTES)
BOMB = zstandard.compress(bytes(200 * 2**20))
"""Small on the wire, 200 MiB when opened."""
PACKED = 0.7
"""The share of records as this release writes them; the others are plain, as earlier ones did."""

_ACCEPTED = {"accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}}
_TOOL = {"name": "book", "description": "Book.", "parameters": {"type": "object", "required": ["party"]}}


def tasks(judge_url: str) -> dict[str, Task]:
    """The demo's kind, and those that are not: math, calls of tools, a judge that watches, signals and nothing else."""
    other: list[dict[str, Any]] = [
        {"name": "sums", "verifiers": [{"name": "right", "kind": "math"}], "signals": _ACCEPTED},
        {
            "name": "calls",
            "verifiers": [{"name": "call", "kind": "tool_call", "config": {"tools": [_TOOL]}}],
            "signals": _ACCEPTED,
        },
        {
            "name": "judged",
            "signals": _ACCEPTED,
            "judges": [
                {
                    "name": "polite",
                    "role": "watch",
                    "url": judge_url,
                    "model": "m",
                    "criteria": "Is it polite?",
                    "pregate": False,
                }
            ],
        },
        {"name": "signalled", "signals": _ACCEPTED, "curation": {"max_per_user": 5000}},
    ]
    made = [BOOKING_TASK, *(Task.model_validate({"window_seconds": 10} | task) for task in other)]
    return {task.name: task for task in made}


def an_experience(**changes: Any) -> Experience:
    """Scored, of version 0."""
    values: dict[str, Any] = {
        "key": sample_key(new_completion_id(), 0),
        "revision": 1,
        "policy": "tiny",
        "task": "booking",
        "task_hash": "",
        "tenant": "default",
        "purpose": "user",
        "baseline_key": "booking",
        "segments": (
            Segment(
                token_ids=pack_ids([1, 2, 3]),
                loss_mask=b"\0\1\1",
                logprobs=pack_floats([0.0, -0.5, -0.25]),
                spans=(Span(0, 0),),
                sampling=Sampling(temperature=1.0, max_tokens=4),
            ),
        ),
        "scores": (Score(name="accepted", grader="signal/1", value=1.0),),
        "reward": 1.0,
        "status": "scored",
        "generated_at": 1000.0,
        "scored_at": 1001.0,
        "engine": "test/1",
        "dtype": "float32",
    }
    return Experience(**(values | changes))


def sound(topic: str, draw: random.Random, names: list[str]) -> Record:
    """A record of a topic that is about an answer of its own."""
    about = a_generation(task=draw.choice(names), session_id="s", join_key="k")
    if topic == GENERATIONS:
        return about
    if topic == SIGNALS:
        return a_signal(about)
    if topic == EPISODES:
        signals = (a_signal(about),)
        return Episode(key=about.key, revision=1, reason="decisive", turns=(about,), signals=signals, closed_at=103.0)
    if topic == EXPERIENCES:
        return an_experience(key=about.key)
    return Outcome(key=about.key, revision=1, epoch=0, state="unlabelled", writer="rewards", at=103.0)


def hostile(topic: str, draw: random.Random, names: list[str]) -> Message:
    """A record of a topic with one field, or two, that nobody expects; also in the body of an answer."""
    record = sound(topic, draw, names)
    key = str(getattr(record, "key", ""))
    tree = msgspec.to_builtins(record, builtin_types=(bytes,))
    for _ in range(draw.choice((1, 1, 2))):
        _damage(tree, draw)
    wire = msgspec.msgpack.encode(tree)
    return Message(topic, draw.randrange(4096), key, packed(wire) if draw.random() < PACKED else wire)


def _damage(tree: Any, draw: random.Random) -> None:
    holder, name = draw.choice(list(_places(tree)))
    value = holder[name]
    if name == "body" and isinstance(value, bytes) and draw.random() < 0.9:
        holder[name] = _damaged_body(value, draw)
        return
    same: tuple[Any, ...] = WHATEVER
    for kind, values in ((bool, WHATEVER), (str, TEXTS), (int, INTEGERS), (float, FLOATS), (bytes, BYTES)):
        if isinstance(value, kind):
            same = values  # of the right type, so that it decodes
            break
    holder[name] = draw.choice(same if draw.random() < 0.9 else WHATEVER)


def _damaged_body(sealed: bytes, draw: random.Random) -> bytes:
    if draw.random() < 0.1:
        return draw.choice((BOMB, sealed[:-3], b"", zstandard.compress(b"\x91" * 100_000)))
    body = msgspec.msgpack.decode(zstandard.decompress(sealed))
    _damage(body, draw)
    if draw.random() < 0.2:
        nested: Any = "deep"
        for _ in range(draw.choice((10, 500))):
            nested = [nested]
        body["messages"] = [{"role": "user", "content": nested}]
    return zstandard.compress(msgspec.msgpack.encode(body))


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for name, value in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, name
        if isinstance(value, dict | list):
            yield from _places(value)
