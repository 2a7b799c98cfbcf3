"""From 1 to 100,000 generations/s: what is needed, computed from measured constants.

usage: python -m benchmarks.scale

In: the constants below, each with the command that measured it. Out: the tables of docs/scale.md. Nothing is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

RATES = (1, 10, 100, 1_000, 10_000, 100_000)
DAY = 86_400


class Constant(NamedTuple):
    """A measured number, and where it is from."""

    name: str
    value: float
    unit: str
    command: str


GATEWAY_MS = Constant("a request through inference", 1.6, "ms of a core", "benchmarks.gateway, 400 requests/s")
WORKER_MS = Constant("a generation through episodes and rewards", 0.64, "ms of a core", "benchmarks.log")
SLOWER_MS = Constant("the slower of the two workers", 0.4, "ms of a core", "benchmarks.log")
FEEDBACK_MS = Constant(
    "a signal through feedback, two cores busy", 1.1, "ms of a core", "benchmarks.feedback, 32 connections"
)
BODY_60 = Constant("body of 60 tokens", 623, "bytes", "benchmarks.log.bytes")
BODY_2000 = Constant("body of 2,000 tokens", 8_370, "bytes", "benchmarks.log.bytes")
HEAD_ALONE = Constant(
    "heads as Kafka stores them, each record alone (below 100/s)",
    1_269,
    "bytes",
    "benchmarks.log.bytes --at-once 1, 60 tokens",
)
HEAD = Constant("the same, with workers that find many (from 100/s)", 662, "bytes", "benchmarks.log.bytes")
ROWS = Constant(
    "rows of generation, signal, score and outcome, without the trainer",
    3.5,
    "rows",
    "benchmarks.log.bytes: rows counted afterwards",
)
TABLE_60 = Constant(
    "PostgreSQL's files, 60 tokens",
    4_500,
    "bytes",
    "pg_database_size, before and after 400 generations of tests.worlds.feed",
)
TRAINER = Constant(
    "the trainer, the benchmark's model, mixed lengths, two cores", 1_078, "tokens/s", "benchmarks.trainer"
)
ENGINE = Constant("the engine, 0.7 M parameters on one thread, 32 in flight", 4_698, "tokens/s", "benchmarks.engine")
SIGNALS = 0.85
"""Signals per generation in the benchmark's feed."""
BATCHED_FROM = 100
"""Generations/s from which a worker finds many records at once."""
REPLICATION, BUSY = 3, 0.5
"""Copies of a record in Kafka, and how busy a core may be."""
CONSTANTS = (
    GATEWAY_MS,
    WORKER_MS,
    SLOWER_MS,
    FEEDBACK_MS,
    BODY_60,
    BODY_2000,
    HEAD_ALONE,
    HEAD,
    ROWS,
    TABLE_60,
    TRAINER,
    ENGINE,
)


ENCODE = Constant("encode with hashes, one core", 0.94, "GB/s", "benchmarks.deltas.threads")
STAGE = Constant("decode, verify and apply, one core", 0.9, "GB/s", "benchmarks.deltas.threads")
RATIO = Constant("a step's payload at 1% changed", 256, "times smaller", "benchmarks.deltas.threads")
PUBLISH = Constant("publish, of the rate of encode", 0.72, "", "benchmarks.deltas.product --layers 2")
BRING = Constant("bring, of the rate of decode, verify and apply", 0.49, "", "benchmarks.deltas.product --layers 2")
CODEC_CONSTANTS = (ENCODE, STAGE, RATIO, PUBLISH, BRING)
TERABYTE, CODEC_CORES = 1000, 20
"""GB of weights, and cores on either side."""
LINKS = (1, 10)
"""Gbit/s from the store to each region; the regions read at the same time."""


def shipped(gigabits: float, encode: float = ENCODE.value, stage: float = STAGE.value) -> dict[str, float]:
    """Seconds of a step of 1 TB on `CODEC_CORES` cores, if all of them help, step by step; the last two are sums."""
    seconds = {
        "encode": TERABYTE / (encode * CODEC_CORES),
        "wire": TERABYTE / RATIO.value * 8 / gigabits,
        "decode, verify and apply": TERABYTE / (stage * CODEC_CORES),
    }
    sums = {
        "codec": sum(seconds.values()),
        "product": seconds["encode"] / PUBLISH.value
        + seconds["wire"]
        + seconds["decode, verify and apply"] / BRING.value,
    }
    return seconds | sums


def cores(rate: float, milliseconds: float) -> int:
    """Cores for this rate, each half busy."""
    return max(1, math.ceil(rate * milliseconds / 1000 / BUSY))


def megabytes(rate: float, body: Constant) -> float:
    """MB/s that the brokers write at this rate."""
    head = HEAD_ALONE if rate < BATCHED_FROM else HEAD
    return rate * (body.value + head.value) * REPLICATION / 1e6


NEEDS: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("cores of inference", lambda rate: f"{cores(rate, GATEWAY_MS.value):,}"),
    ("cores of feedback", lambda rate: f"{cores(rate * SIGNALS, FEEDBACK_MS.value):,}"),
    ("cores of episodes and rewards", lambda rate: f"{cores(rate, WORKER_MS.value):,}"),
    ("partitions", lambda rate: f"{max(4, cores(rate, SLOWER_MS.value)):,}"),
    ("MB/s into Kafka, 60 tokens", lambda rate: _short(megabytes(rate, BODY_60))),
    ("MB/s into Kafka, 2,000 tokens", lambda rate: _short(megabytes(rate, BODY_2000))),
    ("rows/s in PostgreSQL", lambda rate: f"{rate * ROWS.value:,.0f}"),
    ("GB a day in PostgreSQL, 60 tokens", lambda rate: _short(rate * TABLE_60.value * DAY / 1e9)),
    ("tokens/s to sample and to train, 20 each", lambda rate: f"{rate * 20:,.0f}"),
)


def tables() -> Iterator[str]:
    """All tables, line by line."""
    yield from _constants(CONSTANTS)
    yield "| generations/s | " + " | ".join(f"{rate:,}" for rate in RATES) + " |"
    yield "|---" * (len(RATES) + 1) + "|"
    for name, needed in NEEDS:
        yield f"| {name} | " + " | ".join(needed(rate) for rate in RATES) + " |"
    yield ""
    yield from _constants(CODEC_CONSTANTS)
    yield "| seconds | " + " | ".join(f"{gigabits} Gbit/s" for gigabits in LINKS) + " |"
    yield "|---" * (len(LINKS) + 1) + "|"
    for name in shipped(1):
        yield f"| {name} | " + " | ".join(f"{shipped(gigabits)[name]:.0f}" for gigabits in LINKS) + " |"


def _constants(items: Iterable[Constant]) -> Iterator[str]:
    yield "| constant | value | from |"
    yield "|---|---|---|"
    for item in items:
        yield f"| {item.name} | {item.value:,g} {item.unit} | `{item.command}` |".replace("  |", " |")
    yield ""


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"  # noqa: PLR2004 two digits


if __name__ == "__main__":
    print("\n".join(tables()))
