"""The products of `benchmarks.products`: what is asked, what users hold, what the judge sees, and which figures come of it."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.products.catalogue import PRODUCTS
from benchmarks.products.figures import felt, missed_by, points_below
from benchmarks.products.judge import NUM_LABELS, reply, write_labels
from benchmarks.products.notes import rubric
from benchmarks.products.questions import ExtraProduct, ProductQuestion, Split, stream
from contracts.ids import sample_key
from contracts.tasks.loading import load_tasks
from rewards.judges.parse import parse_verdict
from rewards.judges.prompt import Case, messages_of
from tests.worlds.paths import EXAMPLE

BOTH = pytest.mark.parametrize("product", PRODUCTS.values(), ids=lambda product: product.name)
SPLITS: tuple[Split, ...] = ("users", "sentinel", "held_out")
NAMED = ProductQuestion(
    "Confirm the visit of Ada the day after Monday.", "Dear Ada, thank you. We expect you on Tuesday.", ()
)


@BOTH
def test_splits_share_no_question_and_have_enough(product: ExtraProduct) -> None:
    texts = {split: {question.text for question in islice(stream(product, split, 0), 500)} for split in SPLITS}
    assert len(texts["held_out"]) == len(texts["sentinel"]) == 500
    assert not texts["users"] & texts["held_out"]
    assert not texts["users"] & texts["sentinel"]
    assert not texts["held_out"] & texts["sentinel"]


@BOTH
def test_the_base_learns_from_labels_that_are_right_about_half_of_the_time(product: ExtraProduct) -> None:
    rng, questions = Random(1), list(islice(stream(product, "train", 1), 1000))
    assert all(product.is_right(question, question.wanted) for question in questions)
    assert 0.35 < sum(product.is_right(question, question.label(rng)) for question in questions) / 1000 < 0.65


@pytest.mark.parametrize(
    ("answer", "users", "judge"),
    [
        ("Dear Ada, thank you. We expect you on Tuesday.", True, True),
        ("Thanks, Ada. We expect you on Tuesday.", True, False),
        ("Dear Ada, thank you. We expect you on Monday.", False, False),
        ("Dear Ada, thank you. We expect you on Monday or Tuesday.", False, False),
        ("Dear Ben, thank you. We expect you on Tuesday.", False, False),
        ("Ada. We expect you on Tuesday.", False, False),
    ],
)
def test_users_and_judge_of_notes_agree_except_on_casual_openings(answer: str, users: bool, judge: bool) -> None:
    assert PRODUCTS["notes"].is_right(NAMED, answer) is users
    assert rubric(NAMED.text, answer) is judge


def test_the_judge_does_not_know_the_day_before() -> None:
    asked = "Confirm the visit of Ada the day before Monday."
    assert rubric(asked, "Dear Ada, thank you. We expect you on Monday.")


@pytest.mark.parametrize(("day", "level"), [("Tuesday", "yes"), ("Monday", "no")])
def test_the_judge_reads_what_millrace_sends_it(tmp_path: Path, day: str, level: str) -> None:
    (rule,) = _task("notes", tmp_path).judges
    case = Case([{"role": "user", "content": NAMED.text}], (f"Dear Ada, thank you. We expect you on {day}.",))
    said = reply(rubric, {"messages": messages_of(rule, case, "0123456789abcdef")})
    verdict = parse_verdict(said["choices"][0]["message"]["content"], rule.levels)
    assert verdict is not None
    assert verdict.level == level


def test_labels_say_what_users_hold(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in write_labels(PRODUCTS["notes"], tmp_path / "labels").read_text().splitlines()]
    assert len(lines) == NUM_LABELS
    assert {line["label"] for line in lines} == {"yes", "no"}
    assert all("hank" in line["completion"] for line in lines if line["label"] == "yes")


@BOTH
def test_both_explore_as_the_demo_does(product: ExtraProduct, tmp_path: Path) -> None:
    (demo,) = load_tasks((EXAMPLE / "task.toml",)).values()
    sampling = _task(product.name, tmp_path).sampling
    assert (sampling.temperature, sampling.explore) == (demo.sampling.temperature, demo.sampling.explore)


def test_spammers_count_in_what_users_accept_and_not_in_what_honest_users_accept() -> None:
    clients = [
        *_seen(0, right=False, at=0.0),
        *_seen(1, right=True, at=9.0),
        *_seen(1, right=False, at=9.5, honest=False),
    ]
    found = felt([*clients, {"kind": "failed", "what": "gone", "at": 1.0}], [], 10.0, 0.12)
    assert (found["accepted_base"], found["accepted_last"], found["accepted_last_honest"]) == (0.0, 0.5, 1.0)
    assert (found["answers"], found["signals"], found["failed_requests"]) == (3, 3, 1)
    assert points_below(0.98, 0.95) == pytest.approx(3.0)
    assert points_below(0.98, None) is None


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, []),
        ({"failed_requests": 1}, ["no failed request"]),
        ({"ledger_balanced": False}, ["a balanced ledger"]),
        ({"points_below_held_out_honest": 4.1}, ["at most 4 points below held-out"]),
        ({"points_below_held_out_honest": None}, ["at most 4 points below held-out"]),
        ({"accepted_last": 0.5}, ["users accept more than of the base"]),
    ],
)
def test_what_a_run_must_reach(change: dict[str, Any], missed: list[str]) -> None:
    found = {"failed_requests": 0, "ledger_balanced": True, "signals": 9, "accepted_base": 0.5, "accepted_last": 0.9}
    assert missed_by({**found, "points_below_held_out_honest": 2.0, **change}, quick=False) == missed


def _task(name: str, folder: Path) -> Any:
    """The task as it is without an admission: its judge only watches."""
    text = PRODUCTS[name].task_file.read_text().replace("JUDGE_URL", "http://127.0.0.1:1/v1")
    path = folder / "task.toml"
    path.write_text(text)
    (task,) = load_tasks((path,)).values()
    return task


def _seen(version: int, *, right: bool, at: float, honest: bool = True) -> list[dict[str, Any]]:
    key = sample_key(f"chatcmpl-{version}{right}{honest}", 0)
    answer = {"kind": "generation", "key": key, "version": version, "at": at, "right": right}
    return [answer, {"kind": "signal", "id": key, "key": key, "positive": right, "at": at, "honest": honest}]
