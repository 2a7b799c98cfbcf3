"""A seeded home: the rows, the log and the weights that a run of the demo leaves behind."""

from __future__ import annotations

import functools
import math
import random
import sqlite3
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import Connection, insert
from tokenizers import Tokenizer

from contracts import assignments, tables
from contracts.assignments import CANDIDATE, LIVE
from contracts.event_log import Message
from contracts.ledger import NO_END
from contracts.records import Generation, GenerationBody, Signal, Submitter, encode, pack_body, pack_floats, pack_ids
from contracts.sampling import Sampling, Span
from contracts.topics import EPISODES, EXPERIENCES, GENERATIONS, SIGNALS
from runtime.days import migrate
from runtime.settings import Settings
from weights.publish import publish_version
from weights.stores.opening import open_store_at
from weights.tensors import Tensor

POLICY = "reservations"
EPOCH = 2
NUM_VERSIONS = 10
REFUSED = 6
HOSTILE = "<img src=x onerror=\"document.title='owned'\"> accuracy 0.861, -0.062 against v5 (0.923)"
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
HOSTILE_NUMBER = 3
"""The number of the sample whose prompt, answer, signal and submitter are SCRIPT."""
BASE = "examples/reservations/base"
WAITING = {GENERATIONS: 3, SIGNALS: 2, EPISODES: 5, EXPERIENCES: 21}
SECONDS = 280.0
STARTED = time.time()
"""The newest time in the homes that tests share. Read such a home as of this time: on a slow machine it is older than now."""
_GROUPS = {GENERATIONS: "episodes", SIGNALS: "episodes", EPISODES: "rewards"}

Row = dict[str, Any]


def settings_of(home: Path, database_url: str | None = None) -> Settings:
    return Settings(
        database_url=database_url,
        home=home,
        run="2026-11-20-a",
        policy=POLICY,
        base=BASE,
        tasks=(Path("task.toml"),),
        weights_unsigned=True,
    )


def seed(
    home: Path, *, num_generations: int = 1500, now: float | None = None, database_url: str | None = None
) -> Settings:
    """Write a home in which both identities balance. Times end at `now`."""
    settings, now, dice = settings_of(home, database_url), now or time.time(), random.Random(7)
    home.mkdir(parents=True, exist_ok=True)
    database = settings.database()
    migrate(database)
    with database.transaction() as connection:
        num_signals = _samples(connection, dice, num_generations, now)
        _steps(connection, dice, num_generations // 8, now)
        _policy(connection, now)
        _positions(connection, num_generations, num_signals)
    database.close()
    totals = {
        GENERATIONS: num_generations,
        SIGNALS: num_signals,
        EPISODES: num_generations,
        EXPERIENCES: num_generations,
    }
    _log(settings, {topic: total + WAITING[topic] for topic, total in totals.items()}, now)
    _weights(settings, now)
    return settings


def key_of(number: int) -> str:
    return f"chatcmpl-{number:08x}-0000-7000-8000-000000000000"


def _samples(connection: Connection, dice: random.Random, num_generations: int, now: float) -> int:
    generations, signals, received, outcomes, scores = [], [], [], [], []
    for number in range(num_generations):
        share = number / num_generations
        at = now - SECONDS * (1 - share)
        version = int(share * NUM_VERSIONS)
        sentinel = dice.random() < 0.1
        silent = dice.random() < 0.4
        if number == HOSTILE_NUMBER:
            sentinel = silent = False
        reward = None if silent else float(dice.random() < 0.5 + 0.46 * (1 - math.exp(-4 * share)))
        fate = _fate(dice, share, sentinel, silent)
        generations.append(_generation(number, version, at, sentinel=sentinel, fate=fate))
        if fate[1] != "episodes" or sentinel:
            outcomes.append(_outcome(number, fate, at, version + 1))
        if sentinel:
            continue
        scores.append(_score(number, version, reward, at))
        if not silent:
            signals.append(_signal(number, at, "late" if dice.random() < 0.03 else "joined"))
            received.append({"id": f"s{number}", "tenant": "default", "body_hash": "0" * 64, "received_at": at + 2,
                             "record": b"r" * 200})  # fmt: skip
    for table, rows in (
        (tables.generation, generations), (tables.signal, signals), (tables.received_signal, received),
        (tables.outcome, outcomes), (tables.score, scores),
    ):  # fmt: skip
        connection.execute(insert(table), rows)
    counted = Counter(row["version"] for row in scores)
    connection.execute(
        insert(tables.behaviour),
        [{"task": POLICY, "version": version, "cluster": "", "metric": "null", "num": num, "total": 0.0, "squares": 0.0}
         for version, num in counted.items()],
    )  # fmt: skip
    connection.execute(
        insert(tables.ledger_epoch),
        [{"epoch": EPOCH, "previous": None, "kept_sequence": -1, "valid_through": NO_END, "at": now}],
    )
    connection.execute(
        insert(tables.received_signal),
        [{"id": f"waiting{number}", "tenant": "default", "body_hash": "", "received_at": now, "record": b""}
         for number in range(WAITING[SIGNALS])],
    )  # fmt: skip
    connection.execute(
        insert(tables.signal_count),
        [{"state": "duplicate", "count": 31}, {"state": "conflict", "count": 4}, {"state": "rejected", "count": 2}],
    )
    return len(signals)


def _fate(dice: random.Random, share: float, sentinel: bool, silent: bool) -> tuple[str, str, int]:
    if sentinel:
        return "filtered", "episodes", 0
    if share > 0.96:
        return "pending", "episodes", 0
    if silent:
        return "unlabelled", "rewards", 0
    roll = dice.random()
    for limit, state in ((0.01, "stale"), (0.015, "off_support"), (0.035, "quarantined")):
        if roll < limit:
            return state, "training", EPOCH
    # What an undone epoch trained is pending again: one in fifty was not trained a second time.
    return "trained", "training", EPOCH if dice.random() > 0.02 else EPOCH - 1


def _generation(number: int, version: int, at: float, *, sentinel: bool, fate: tuple[str, str, int]) -> Row:
    state, writer, epoch = fate
    return {
        "completion_id": key_of(number), "choice": 0, "partition": number % 4, "policy": POLICY, "task": POLICY,
        "tenant": "default", "purpose": "sentinel" if sentinel else "user", "arm": LIVE, "version": version, "created_at": at,
        "joined_at": at + 0.1 + 0.2 * (number % 7), "closes_at": None, "revision": 1, "state": state,
        "state_reason": "sentinel" if sentinel else "", "state_writer": writer, "state_epoch": epoch,
        "state_revision": 1, "state_version": version + 1 if state == "trained" else None,
        "record": encode(record_of(number, version, at, sentinel=sentinel)),
    }  # fmt: skip


def record_of(number: int, version: int, at: float, *, sentinel: bool = False) -> Generation:
    """The prompt: a booking, or SCRIPT."""
    dice = random.Random(number)
    name, party, hour = dice.choice(("Ada", "Grace", "Alan", "Edsger")), dice.randint(2, 9), dice.randint(17, 21)
    prompt = f"a table for {party} at {hour}:30 please, {name}"
    text = f'{{"party": {party}, "time": "{hour}:30", "name": "{name}"}}'
    if number == HOSTILE_NUMBER:
        prompt = text = SCRIPT
    ids = _tokenizer().encode(text, add_special_tokens=False).ids
    logprobs = [-abs(dice.gauss(0, 0.05)) if dice.random() < 0.7 else -dice.expovariate(0.6) for _ in ids]
    body = GenerationBody(
        messages=[{"role": "system", "content": "Answer with a booking."}, {"role": "user", "content": prompt}],
        text=text, prompt_ids=pack_ids([1, 2, 3]), completion_ids=pack_ids(ids), logprobs=pack_floats(logprobs),
    )  # fmt: skip
    return Generation(
        completion_id=key_of(number), choice=0, tenant="default", policy=POLICY, task=POLICY, task_hash="ab12",
        purpose="sentinel" if sentinel else "user", arm=LIVE, arm_probability=1.0, spans=(Span(0, version),),
        sampling=Sampling(temperature=1.0, max_tokens=32), finish_reason="stop", created_at=at, finished_at=at + 0.09,
        engine="millrace/1", dtype="BF16", body=pack_body(body),
    )  # fmt: skip


@functools.cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(f"{BASE}/tokenizer.json")


def signal_of(number: int, at: float) -> Signal:
    """A signal of a user about an answer."""
    hostile = number == HOSTILE_NUMBER
    return Signal(
        id=f"s{number}", completion_id=key_of(number), choice=0, name="accepted", value=SCRIPT if hostile else True,
        at=at + 1, received_at=at + 2, tenant="default", submitter=Submitter(id=SCRIPT if hostile else "ann"),
    )  # fmt: skip


def _outcome(number: int, fate: tuple[str, str, int], at: float, version: int) -> Row:
    state, writer, epoch = fate
    return {"key": f"{key_of(number)}:0", "revision": 1, "epoch": epoch, "state": state, "reason": "",
            "version": version if state == "trained" else None, "writer": writer, "at": at + 5 + number % 5}  # fmt: skip


def _score(number: int, version: int, reward: float | None, at: float) -> Row:
    return {
        "key": f"{key_of(number)}:0", "revision": 1, "task": POLICY, "purpose": "user", "version": version,
        "reward": reward, "status": "unlabelled" if reward is None else "scored", "fault": "none",
        "tenant": "default", "components": [{"name": "accepted", "grader": "signal/1#ab12", "value": reward, "weight": 1.0}], "at": at + 3,
    }  # fmt: skip


def _signal(number: int, at: float, state: str) -> Row:
    return {"id": f"s{number}", "tenant": "default", "completion_id": key_of(number), "choice": 0, "name": "accepted",
            "submitter": signal_of(number, at).submitter.id, "at": at + 1, "received_at": at + 2, "state": state, "reason": "",
            "revision": 1, "record": encode(signal_of(number, at))}  # fmt: skip


def _steps(connection: Connection, dice: random.Random, num_steps: int, now: float) -> None:
    rows = []
    for step in range(num_steps):
        share = step / num_steps
        metrics = {
            "loss": 0.05 * dice.gauss(0, 1) - 0.03 * share, "ess": 0.97 - 0.12 * dice.random() * (0.4 + share),
            "ratio_max": 1.3 + 0.9 * dice.random() ** 4, "k3": 0.002 + 0.004 * dice.random() * share,
            "anchor_kl": 0.35 * (1 - math.exp(-3 * share)) + 0.01 * dice.random(),
            "gradient_norm": 0.9 * math.exp(-share) + 0.2 * dice.random(), "entropy": 0.42 * math.exp(-1.4 * share),
            "num_samples": 8,
        }  # fmt: skip
        at = now - SECONDS * 0.96 * (1 - share)
        rows.append({"epoch": 1 if share < 0.3 else EPOCH, "step": step, "at": at, "metrics": metrics})
    if rows:
        connection.execute(insert(tables.training_step), rows)


def _policy(connection: Connection, now: float) -> None:
    best, epochs = 0.0, dict.fromkeys((LIVE, CANDIDATE), 0)

    def point(arm: str, version: int | None, reason: str, at: float) -> None:
        assignments.move(
            connection, policy=POLICY, arm=arm, version=version, expected_epoch=epochs[arm], writer="release",
            reason=reason, share=1.0 if arm == LIVE else 0.0,
        )  # fmt: skip
        epochs[arm] += 1
        change = tables.assignment_change
        connection.execute(change.update().where(change.c.arm == arm, change.c.epoch == epochs[arm]).values(at=at))

    for version in range(NUM_VERSIONS):
        at = published_at(version, now)
        accuracy = 0.861 if version == REFUSED else round(0.5 + 0.46 * (1 - math.exp(-0.5 * version)), 3)
        accepted = version != REFUSED
        reason = f"accuracy {accuracy:.3f}, {accuracy - best:+.3f} against v{max(version - 1, 0)} ({best:.3f})"
        if version:
            point(CANDIDATE, version, "published", at)
            point(CANDIDATE, None, f"v{version} judged", at + 5)
        if accepted:
            point(LIVE, version, reason if version else "base policy", at + 5)
            connection.execute(insert(tables.swap).values(
                policy=POLICY, arm=LIVE, version=version, at=at + 6, stage_seconds=0.09,
                pause_seconds=0.004 + 0.001 * (version % 3), gap_seconds=0.011 + 0.002 * (version % 4),
            ))  # fmt: skip
        connection.execute(insert(tables.verdict).values(
            policy=POLICY, version=version, accepted=accepted, accuracy=accuracy,
            best_accuracy=best if version else None, reason=HOSTILE if version == REFUSED else reason,
            details=details_of(version, accuracy, best), at=at + 5,
        ))  # fmt: skip
        best = max(best, accuracy)
    point(CANDIDATE, NUM_VERSIONS, "published", published_at(NUM_VERSIONS, now))


def details_of(version: int, value: float, against: float) -> dict[str, Any]:
    """Verdicts as release writes them: the first version was compared with no other."""
    compared = {"reference": "live", "version": version - 1, "value": value, "against": against, "num": 200, "wins": 9}
    compared |= {"losses": 4, "discordant": 13, "p": 0.953, "p_better": 0.133, "alpha": 0.0025, "test": "sign"}
    compared |= {"least_difference": 0.0656}
    of_task = {"graders": ["exact"], "num": 200, "value": value, "comparisons": [compared] if version else []}
    return {"version": version, "sentinels": "abc", "tasks": {"reservations": of_task}, "ungated": {}}


def parent_of(version: int) -> int | None:
    """Refused versions have no children."""
    if version == 0:
        return None
    return version - 2 if version - 1 == REFUSED else version - 1


def published_at(version: int, now: float) -> float:
    return now - SECONDS + version * SECONDS / (NUM_VERSIONS + 0.3)


def _positions(connection: Connection, num_generations: int, num_signals: int) -> None:
    totals = {GENERATIONS: num_generations, SIGNALS: num_signals, EPISODES: num_generations}
    rows = [
        {"consumer_group": group, "topic": topic, "partition": part, "next_offset": 0 if part else totals[topic]}
        for topic, group in _GROUPS.items()
        for part in range(4)
    ]
    connection.execute(insert(tables.position), rows)


def _log(settings: Settings, totals: dict[str, int], now: float) -> None:
    """All records in partition 0, spread evenly over the time of the run."""
    event_log = settings.event_log()
    for topic, total in totals.items():
        event_log.append([Message(topic, 0, key_of(number), b"x" * 60) for number in range(total)])
        connection = sqlite3.connect(settings.home / "log" / f"{topic}.db")
        with connection:
            connection.execute(
                "UPDATE record SET appended_at = ?1 - ?2 * (1 - (offset + 1.0) / ?3)", (now, SECONDS, total)
            )
        connection.close()
    event_log.close()


def _weights(settings: Settings, now: float) -> None:
    store, dice = open_store_at(settings.weights), np.random.default_rng(3)
    words = dice.integers(0, 2**16, 4096, dtype=np.uint16)
    made: dict[int, Any] = {}
    for version in range(NUM_VERSIONS + 1):
        parent = parent_of(version)
        tensor = {"embed": Tensor("BF16", (64, 64), words.copy().view(np.uint8))}
        publish_version(
            store, policy=POLICY, run=settings.run, version=version, parent=parent,
            base=None if parent is None else made[parent], target=tensor, step=version * 16, epoch=EPOCH, num_samples=128 if version else 0,
            created_at=published_at(version, now),
        )  # fmt: skip
        made[version] = tensor
        words = words + (dice.random(4096) < 0.7 * math.exp(-0.15 * version)).astype(np.uint16)
