from __future__ import annotations

import random
from typing import Any

import pytest

from contracts.ids import new_completion_id
from contracts.ledger import generation_counts
from contracts.records import Generation, Outcome
from contracts.tasks import Task
from contracts.tasks.curation import CurationRule
from pipelines.episodes.curation.curator import (
    Curator,
    DigestIndex,
    PromptFeatures,
    PromptWindow,
    digest_of,
    hash_of,
)
from runtime.database import Database
from tests.fakes import a_signal, asking
from tests.unit.pipelines.episodes.bench import Join, a_task

WORDS = [f"word{number}" for number in range(2_000)]


def seen(text: str = "", at: float = 0.0, topic: str = "a", language: str = "en", user: str = "ann") -> PromptFeatures:
    return PromptFeatures(at, hash_of(text), digest_of(text), topic, language, user)


def a_text(seed: int, num_words: int = 60) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=num_words))


def changed(text: str, num_words: int) -> str:
    words = text.split()
    for place in range(num_words):
        words[3 * place] = "other"
    return " ".join(words)


def test_equal_prompts_are_kept_so_often_and_forgotten_after_the_window() -> None:
    window = PromptWindow(CurationRule(duplicates=2, window_seconds=100))
    decisions = [window.admit(seen(text, at)) for at, text in enumerate(("A  table", "a table", "a TABLE", "other"))]
    assert decisions == [None, None, "duplicate", None]
    assert window.admit(seen("a table", 102.5)) is None


def test_similar_prompts_are_found_and_different_ones_are_not() -> None:
    window = PromptWindow(CurationRule(near_duplicates=1, window_seconds=1_000))
    texts = [a_text(seed) for seed in range(100)]
    assert {window.admit(seen(text)) for text in texts} == {None}
    similar = [window.admit(seen(changed(text, 1))) for text in texts]
    assert similar.count("near_duplicate") >= 95
    different = [window.admit(seen(changed(text, 18))) for text in texts]
    assert different.count("near_duplicate") <= 5


def test_a_crowded_band_does_not_cost_more_and_more() -> None:
    index, digest = DigestIndex(0.8), digest_of(a_text(1))
    for _ in range(1_500):  # each an object of its own
        index.add(bytes(bytearray(digest)))
    assert len(index.similar(digest)) == 1_000


def test_what_is_forgotten_is_forgotten_whole() -> None:
    window = PromptWindow(CurationRule(near_duplicates=1, duplicates=1, max_per_user=5, window_seconds=10))
    for number in range(50):
        assert window.admit(seen(a_text(number), at=100.0 * number)) is None
    assert (len(window._kept), len(window._digests), len(window._texts), len(window._users)) == (1, 16, 1, 1)


def test_no_user_and_no_topic_takes_more_than_its_share() -> None:
    window = PromptWindow(CurationRule(max_per_user=3))
    assert [window.admit(seen(str(number))) for number in range(4)][-2:] == [None, "user_quota"]
    window = PromptWindow(CurationRule(max_topic_share=0.5))
    topics = ["a"] * 90 + ["b"] * 60 + ["a"] * 20
    kept = [topic for topic in topics if window.admit(seen(topic=topic)) is None]
    assert kept.count("a") <= 90
    assert kept.count("b") == 60
    window = PromptWindow(CurationRule(max_language_share=0.6))
    languages = ["en", "en", "en", "de"] * 100
    kept = [code for code in languages if window.admit(seen(language=code)) is None]
    assert kept.count("en") / len(kept) == pytest.approx(0.6, abs=0.02)


def decision(curator: Curator, record: Generation) -> str | None:
    prompt = curator.check(record)
    return curator.decide(record, prompt) if prompt else None


def a_curator(**rule: Any) -> Curator:
    signals = {"accepted": {"type": "bool", "labels": {"true": 1.0}}}
    return Curator({"booking": Task.model_validate({"name": "booking", "signals": signals, "curation": rule})})


def test_a_record_that_is_delivered_again_fares_as_before_and_so_do_all_choices() -> None:
    curator = a_curator(duplicates=1)
    identity = new_completion_id()
    first = [decision(curator, asking("hello there", completion_id=identity, choice=choice)) for choice in (0, 1)]
    again = decision(curator, asking("hello there", completion_id=identity))
    assert (first, again) == ([None, None], None)
    other = asking("hello there")
    assert [decision(curator, other), decision(curator, other)] == ["duplicate", "duplicate"]


def test_a_refused_prompt_takes_no_place_in_the_window() -> None:
    curator = a_curator(max_characters=10, max_per_user=1)
    assert decision(curator, asking("much too long to be kept")) == "too_long"
    assert decision(curator, asking("short")) is None


def test_a_user_of_the_same_name_at_another_tenant_is_somebody_else() -> None:
    curator = a_curator(max_per_user=1)
    asked = [("acme", "ann"), ("other", "ann"), ("acme", None), ("other", "acme"), ("acme", "ann"), ("acme", None)]
    decisions = [
        decision(curator, asking(f"hello {place}", tenant=tenant, person=person))
        for place, (tenant, person) in enumerate(asked)
    ]
    assert decisions == [None, None, None, None, "user_quota", "user_quota"]


def test_sentinels_and_tasks_without_rules_are_not_curated() -> None:
    assert a_curator(max_characters=1).check(asking("hello", purpose="sentinel")) is None
    assert a_curator().check(asking("hello")) is None


def test_the_answer_decides_nothing() -> None:
    """A filter that the policy can reach is one that it learns to use."""
    curator = a_curator(max_characters=20, secrets=True)
    said = "AKIA" + "IOSFODNN7EXAMPLX" + " and much more than twenty characters"
    assert decision(curator, asking("hello", answer=said)) is None


ACCEPTED = {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}


def test_what_is_refused_is_named_and_never_becomes_an_episode(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED}, curation={"duplicates": 1, "secrets": True}))
    first, again = asking("a table for two"), asking("A table  for two")
    secret = asking("use AKIA" + "IOSFODNN7EXAMPLX")
    sentinel = asking("a table for two", purpose="sentinel")
    episodes = join.hear(first, again, secret, sentinel, a_signal(first), a_signal(again), a_signal(secret))
    assert {episode.key for episode in episodes} == {first.key}, "the gate grades its sentinels itself"
    named = {record.key: (record.state, record.reason) for record in join.sent if isinstance(record, Outcome)}
    assert named[again.key] == ("filtered", "duplicate")
    assert named[secret.key] == ("filtered", "secret")
    join.hear(*(record for record in join.sent if isinstance(record, Outcome)))
    assert join.wait(1e6) == []
    with database.snapshot() as connection:
        counts = generation_counts(connection)
    assert counts.unexplained == 0
    assert counts.states["filtered"] == 3


def test_a_retraction_and_a_late_signal_wake_nothing_that_was_refused(database: Database) -> None:
    join = Join(database, a_task({"accepted": ACCEPTED}, curation={"max_characters": 3}))
    about = asking("much too long")
    signal = a_signal(about)
    assert join.hear(about, signal) == []
    join.now = 5_000.0
    assert join.hear(a_signal(about, value=False, received_at=5_000.0)) == []
    assert join.wait(1e6) == []
