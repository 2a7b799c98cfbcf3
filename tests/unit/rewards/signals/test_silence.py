"""What the silent are worth, by known truth and through the real worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from contracts.errors import InvalidTask
from contracts.records import Submitter
from contracts.tables import heard, vote
from contracts.tasks.loading import load_tasks
from pipelines.training.learning.advantages import Part, parts_of
from rewards.signals.silence import (
    BOUND,
    ENOUGH,
    NEWEST,
    NUM_BUCKETS,
    PRIOR,
    SilenceEvidence,
    Tally,
    bucket_of,
    expected_of,
    newest_of,
    read_evidence,
)
from runtime.database import Database
from tests.fakes import Crash
from tests.unit.rewards.test_task_graders import a_task as admitted
from tests.worlds.crowd import BLAND, GRADED, HELPFUL, SilentCrowd, Style, is_imputed
from tests.worlds.servers.judge import judge_server, verdict

pytestmark = pytest.mark.slow

STYLES = (HELPFUL, BLAND)
HOUR, DAY = 3600.0, 86_400.0
THUMBS = GRADED["signals"]["thumbs"]
MakeCrowd = Callable[..., SilentCrowd]


@pytest.fixture
def crowd(database: Database) -> Iterator[MakeCrowd]:
    made: list[SilentCrowd] = []

    def make(says: Any = None, *, reference: str = "42", **changes: Any) -> SilentCrowd:
        given = {} if says is None else {"says": says}
        made.append(SilentCrowd(database, GRADED | changes, reference=reference, **given))
        return made[-1]

    yield make
    for one in made:
        one.close()


def rows(database: Database) -> tuple[int, int, float]:
    """Answers, how many were spoken about, and what was said, over all hours and buckets."""
    columns = heard.c
    sums = [func.coalesce(func.sum(column), 0) for column in (columns.num_answers, columns.num_heard, columns.total)]
    with database.snapshot() as connection:
        num_answers, num_heard, total = connection.execute(select(*sums)).one()
    return num_answers, num_heard, total


# The rule.


def test_grades_fall_into_five_buckets() -> None:
    assert [bucket_of(grade) for grade in (0.0, 0.19, 0.2, 0.5, 0.8, 1.0)] == [0, 0, 1, 2, 4, 4]
    assert bucket_of(1.0) == NUM_BUCKETS - 1


@pytest.mark.parametrize(
    ("asked", "others", "wanted"),
    [
        (Tally(500, 40, 10.0), Tally(500, 400, 400.0), (0.25, 40, True)),
        (Tally(500, ENOUGH - 1, 10.0), Tally(500, 400, 300.0), (0.75, 400, False)),
    ],
)
def test_people_who_were_asked_come_first_if_they_are_enough(
    asked: Tally, others: Tally, wanted: tuple[float, int, bool]
) -> None:
    found = expected_of({(4, 1): asked, (4, 0): others}, 4, {})
    assert found is not None
    assert (found.value, found.num, found.is_asked) == wanted


def test_with_too_few_words_nothing_is_expected() -> None:
    assert expected_of({(4, 0): Tally(1000, ENOUGH - 1, 1.0), (0, 0): Tally(900, 900, 9.0)}, 4, {}) is None
    assert expected_of({}, 0, {}) is None


def test_the_weight_is_half_the_response_and_less_where_little_was_said() -> None:
    found = expected_of({(4, 0): Tally(200, 80, 40.0)}, 4, {})
    assert found is not None
    assert found.weight == pytest.approx(BOUND * 0.4 * 80 / (80 + PRIOR))
    everybody = expected_of({(4, 0): Tally(10_000, 10_000, 1.0)}, 4, {0: (10_000, 10_000)})
    assert everybody is not None
    assert 0.49 < everybody.weight < BOUND


def test_a_version_nobody_reacts_to_weighs_next_to_nothing_and_no_version_weighs_more_than_all() -> None:
    tallies = {(4, 0): Tally(1000, 500, 250.0)}
    weights = [
        found.weight
        for responses in ({}, {0: (1000, 0)}, {0: (100, 100)}, {1: (1000, 0)})
        if (found := expected_of(tallies, 4, responses)) is not None
    ]
    new, silent, loud, asked_only = weights
    assert silent == pytest.approx(new * PRIOR / (1000 + PRIOR))
    assert loud == new == asked_only


def test_the_newest_hours_come_first_and_old_ones_do_not_count_beyond_enough() -> None:
    hours = [(4, 0, Tally(NEWEST, NEWEST, 0.0)), (4, 0, Tally(9000, 9000, 9000.0)), (3, 0, Tally(5, 5, 5.0))]
    assert newest_of(hours) == {(4, 0): Tally(NEWEST, NEWEST, 0.0), (3, 0): Tally(5, 5, 5.0)}


def test_evidence_is_short_and_read_again() -> None:
    evidence = SilenceEvidence("0123456789ab", 4, -0.1234567890123456789e-300)
    assert read_evidence(str(evidence)) == evidence
    assert len(str(evidence)) <= 64
    assert read_evidence("") is None


# Known truth.


def test_the_helpful_win_where_renormalising_pays_the_bland(crowd: MakeCrowd) -> None:
    """Truth .80 and .70; renormalised .88 and .97; imputed .794 and .777, and further apart as the trainer weighs them."""
    expecting = crowd()
    expecting.talk(STYLES, 2)
    warm = expecting.now
    expecting.talk(STYLES, 4)
    made = expecting.made_of(STYLES, since=warm)
    assert (made["helpful"].mean, made["bland"].mean) == pytest.approx((0.794, 0.777), abs=5e-4)
    assert made["helpful"].weighted == pytest.approx(0.80, abs=0.005)
    assert made["bland"].weighted < 0.74
    assert made["helpful"].num_rewarded == made["bland"].num_rewarded == 400
    plain = crowd(name="plain", silence="renormalise")
    plain.talk(STYLES, 1)
    made = plain.made_of(STYLES)
    assert (made["helpful"].mean, made["bland"].mean) == pytest.approx((0.88, 0.97))


def test_what_is_imputed_from_speakers_weighs_at_most_half_of_what_was_said(crowd: MakeCrowd) -> None:
    people = crowd()
    people.talk(STYLES, 6)
    imputed = sum(item.weight for item in people.experiences.values() if is_imputed(item))
    spoken = sum(
        item.weight for item in people.experiences.values() if item.reward is not None and not is_imputed(item)
    )
    assert 0 < imputed <= spoken / 2
    assert max(item.weight for item in people.experiences.values() if is_imputed(item)) <= BOUND


def test_graders_know_right_from_wrong_among_the_silent(crowd: MakeCrowd) -> None:
    """People say more good of right answers: silence about a wrong one is worth what others said of wrong ones."""
    wrong = Style("wrong", 0.2, 0.5, text="41", version=2)
    people = crowd()
    people.talk((HELPFUL, wrong), 2)
    silent = {people.style_of[key].name: item.reward for key, item in people.experiences.items() if is_imputed(item)}
    assert silent == {"helpful": pytest.approx(0.8), "wrong": pytest.approx(0.1)}


def test_random_asking_at_five_percent_counts_the_asked_alone(crowd: MakeCrowd) -> None:
    """One answer in twenty is asked about; volunteers, all of them angry, weigh nothing and teach nothing."""
    people = crowd(asking={"probability": 0.05, "signals": ["thumbs"]})
    people.talk(STYLES, 1, asked=True)
    warm = people.now
    people.talk(STYLES, 1, asked=True)
    asked = people.made_of(STYLES, since=warm)
    warm = people.now
    angry = [style._replace(utility=0.0) for style in STYLES]
    people.talk(angry, 1, asked=False)
    rest = people.made_of(STYLES, since=warm)
    means, weighted = {}, {}
    for name in ("helpful", "bland"):
        assert rest[name].mean == pytest.approx(0.5 + 0.5 * 0.4 / 0.7, abs=1e-3)  # 0.571 is what the asked say
        means[name] = 0.05 * asked[name].mean + 0.95 * rest[name].mean
        share = {"asked": 0.05 * asked[name].total_weight, "rest": 0.95 * rest[name].total_weight}
        total = share["asked"] * asked[name].weighted + share["rest"] * rest[name].weighted
        weighted[name] = total / sum(share.values())
    assert means["helpful"] > means["bland"]
    assert weighted["helpful"] > weighted["bland"]
    reasons = {score.reason for item in people.experiences.values() for score in item.scores if is_imputed(item)}
    assert any("asked at random" in reason for reason in reasons)
    assert not any("who spoke" in reason for reason in reasons)


# Other tasks.

MATH = {
    "name": "sums",
    "verifiers": [{"name": "value", "kind": "math", "role": "component", "weight": 0.5}],
}
EDITED = {
    "name": "programs",
    "reward": {"low": -1.0, "high": 1.0},
    "signals": {"edited": {"means": "edit"}},
    "verifiers": [{"name": "runs", "kind": "code", "role": "component", "weight": 0.5}],
}
PROGRAM = "```python\ndef f(x):\n    return x + 1\n```"
TESTS = '{"function": "f", "tests": [[1, 2]], "held_out": [[5, 6]]}'


def test_math_and_thumbs(crowd: MakeCrowd) -> None:
    boxed = [style._replace(text="\\boxed{42}") for style in STYLES]
    people = crowd(**MATH)
    people.talk(boxed, 3)
    made = people.made_of(boxed)
    assert made["helpful"].mean > made["bland"].mean
    assert made["helpful"].weighted > made["bland"].weighted


def test_code_and_edit(crowd: MakeCrowd) -> None:
    def says(*, happy: bool) -> dict[str, Any]:
        return {"name": "edited", "value": PROGRAM if happy else "something else entirely, by hand"}

    styles = [style._replace(text=PROGRAM) for style in STYLES]
    people = crowd(says, reference=TESTS, **EDITED)
    people.talk(styles, 3)
    made = people.made_of(styles)
    assert made["helpful"].mean > made["bland"].mean
    assert made["helpful"].weighted > made["bland"].weighted


def test_a_judge_and_accepted(crowd: MakeCrowd, tmp_path: Path) -> None:
    def says(*, happy: bool) -> dict[str, Any]:
        return {"name": "accepted", "value": happy}

    with judge_server(lambda _: verdict("yes")) as server:
        judged = admitted(tmp_path, server.url, role="component", weight=0.5)
        accepted = {"accepted": {"type": "bool", "labels": {"true": 1.0, "false": 0.0}}}
        people = crowd(says, name="letters", judges=[judged.judges[0].model_dump()], verifiers=[], signals=accepted)
        people.talk(STYLES, 3)
    made = people.made_of(STYLES)
    assert made["helpful"].num_rewarded > 200
    assert made["helpful"].mean > made["bland"].mean
    assert made["helpful"].weighted > made["bland"].weighted


def test_gates_alone_leave_one_bucket_and_a_refused_answer_needs_nobodys_word(crowd: MakeCrowd) -> None:
    gate = {"name": "right", "kind": "exact", "role": "gate"}
    people = crowd(verifiers=[gate])
    wrong = Style("wrong", 0.5, 0.0, text="41")
    people.talk((HELPFUL, wrong), 2)
    made = people.made_of((HELPFUL, wrong))
    assert (made["wrong"].mean, made["wrong"].weighted) == (0.0, 0.0)
    assert made["helpful"].mean == pytest.approx(0.6)
    assert rows(people.database)[0] == 200  # a refused answer is no evidence


def test_tasks_of_one_home_do_not_hear_of_each_other(database: Database) -> None:
    one, two = (SilentCrowd(database, GRADED | {"name": name}) for name in ("one", "two"))
    one.talk((HELPFUL,), 2)
    two.talk((BLAND,), 2)
    assert not any(is_imputed(item) for item in two.experiences.values())  # 20 of its own spoke: too few
    two.talk((BLAND,), 2)
    guessed = [item.reward for item in two.experiences.values() if is_imputed(item)]
    assert guessed == pytest.approx([0.7] * len(guessed))
    assert guessed
    one.close()
    two.close()


def test_a_changed_task_forgets_what_was_said_under_another_rule(crowd: MakeCrowd) -> None:
    crowd().talk((HELPFUL,), 2)
    changed = crowd(signals={"thumbs": THUMBS | {"labels": {"up": 0.5, "down": 0.0}}})
    changed.talk((HELPFUL,), 1)
    assert not any(is_imputed(item) for item in changed.experiences.values())


@pytest.mark.parametrize("silence", ["expected", "renormalise"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('kind = "exact"\nrole = "watch"', "no verifier or judge of this task is a gate or a component"),
        ("", "signals have no weight in this task"),
    ],
)
def test_a_task_with_nothing_to_condition_on_is_refused_by_line(
    tmp_path: Path, silence: str, change: str, says: str
) -> None:
    grader = change or 'kind = "exact"\nrole = "component"\nweight = 1.0'
    lines = [
        'name = "chat"', f'silence = "{silence}"', "[signals.liked]", 'type = "bool"', "labels = { true = 1.0 }",
        "[[verifiers]]", 'name = "right"', grader,
    ]  # fmt: skip
    (tmp_path / "task.toml").write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidTask, match=rf"task\.toml:2: .*{says}"):
        load_tasks((tmp_path / "task.toml",))


# Revisions.


@pytest.fixture
def warm(crowd: MakeCrowd) -> SilentCrowd:
    """100 answers, of which 60 were spoken about; 0.8 is expected of the silent."""
    people = crowd()
    people.talk((HELPFUL,), 1)
    return people


def test_who_speaks_later_replaces_what_was_expected(warm: SilentCrowd) -> None:
    before = rows(warm.database)
    turn = warm.answer(HELPFUL)
    (first,) = warm.hear([warm.episode(turn)])
    said = warm.word(turn, happy=False)
    (second,) = warm.hear([warm.episode(turn, said, revision=2)])
    assert is_imputed(first)
    assert first.reward == pytest.approx(0.8)
    assert (first.status, first.fault) == ("scored", "none")
    assert 0 < first.weight <= BOUND
    assert (second.reward, second.weight, is_imputed(second)) == (0.5, 1.0, False)
    assert rows(warm.database) == (before[0] + 1, before[1] + 1, before[2])


def test_a_word_that_is_changed_or_taken_back_is_taken_out_again(warm: SilentCrowd) -> None:
    before = rows(warm.database)
    turn = warm.answer(HELPFUL)
    up, down = warm.word(turn, happy=True), warm.word(turn, happy=False, id="fb_later", at=warm.now + 1)
    counts = []
    for revision, signals in enumerate([(up,), (up, down), (), (down,), ()], start=1):
        (made,) = warm.hear([warm.episode(turn, *signals, revision=revision)])
        counts.append(tuple(new - old for new, old in zip(rows(warm.database), before, strict=True)))
    assert counts == [(1, 1, 1.0), (1, 1, 0.0), (1, 0, 0.0), (1, 1, 0.0), (1, 0, 0.0)]
    assert is_imputed(made)  # silence again


def test_revisions_in_one_batch_count_as_they_would_have_one_by_one(warm: SilentCrowd) -> None:
    before = rows(warm.database)
    turn = warm.answer(HELPFUL)
    said = warm.word(turn, happy=True)
    warm.hear([warm.episode(turn), warm.episode(turn, said, revision=2), warm.episode(turn, revision=3)])
    assert rows(warm.database) == (before[0] + 1, before[1], before[2])


def test_what_is_delivered_again_counts_once(warm: SilentCrowd) -> None:
    turn = warm.answer(HELPFUL)
    episode = warm.episode(turn, warm.word(turn, happy=True))
    warm.hear([episode, episode])
    before = rows(warm.database)
    assert warm.hear([episode]) == []
    assert rows(warm.database) == before


def test_a_transaction_that_fails_counts_nothing(warm: SilentCrowd) -> None:
    before = rows(warm.database)
    turn = warm.answer(HELPFUL)
    item = warm.graded(warm.episode(turn, warm.word(turn, happy=True)))

    def die() -> None:
        with warm.database.transaction() as connection:
            warm.handler.handle(connection, [item])
            raise Crash

    with pytest.raises(Crash):
        die()
    assert rows(warm.database) == before
    warm.hear([item.episode])
    assert rows(warm.database) == (before[0] + 1, before[1] + 1, before[2] + 1.0)


def test_a_provisional_guess_weighs_by_the_signals_that_would_be_in(crowd: MakeCrowd) -> None:
    """Thumbs have two days: after ten minutes a guess weighs little, in the end it has its whole weight."""
    people = crowd(signals={"thumbs": THUMBS | {"window_seconds": 2 * DAY}})
    people.talk((HELPFUL,), 2)
    turn = people.answer(HELPFUL, finished_at=people.now - 600)
    (early,) = people.hear([people.episode(turn, provisional=True)])
    people.now += 2 * DAY
    (final,) = people.hear([people.episode(turn, revision=2)])
    assert is_imputed(early)
    assert is_imputed(final)
    assert early.reward == final.reward
    assert 0 < early.weight < 0.2 * final.weight


def test_late_words_count_where_their_answer_does(warm: SilentCrowd) -> None:
    def hours() -> set[int]:
        with warm.database.snapshot() as connection:
            return set(connection.execute(select(heard.c.cohort)).scalars())

    turn = warm.answer(HELPFUL)
    warm.hear([warm.episode(turn)])
    before = hours()
    warm.now += 5 * HOUR
    warm.hear([warm.episode(turn, warm.word(turn, happy=True), revision=2)])
    assert hours() == before


def test_evidence_ages_until_silence_is_unlabelled_again(warm: SilentCrowd) -> None:
    warm.now += 6 * DAY
    (still,) = warm.hear([warm.episode(warm.answer(HELPFUL))])
    warm.now += 2 * DAY
    (gone,) = warm.hear([warm.episode(warm.answer(HELPFUL))])
    assert is_imputed(still)
    assert (gone.reward, gone.status) == (None, "unlabelled")
    with warm.database.transaction() as connection:
        warm.handler.tick(connection, warm.now, frozenset({0}))
    assert rows(warm.database)[0] == 2


def test_a_clock_that_is_far_ahead_teaches_nobody(crowd: MakeCrowd) -> None:
    people = crowd()
    people.talk((HELPFUL,), 2, finished_at=people.now + 10 * DAY)
    (made,) = people.hear([people.episode(people.answer(HELPFUL))])
    assert made.reward is None


# Whose word does not count.


def test_a_refused_vote_is_silence(crowd: MakeCrowd) -> None:
    people = crowd(trust={"votes": 1})
    people.talk((HELPFUL,), 1)
    before = rows(people.database)
    turns = [people.answer(HELPFUL) for _ in range(2)]
    first, capped = people.hear([people.episode(turn, people.word(turn, happy=False, who="bob")) for turn in turns])
    assert (first.reward, first.weight) == (0.5, 1.0)
    assert is_imputed(capped)
    assert capped.reward == pytest.approx(0.8)
    assert [score.weight for score in capped.scores if score.name == "thumbs"] == [0.0]
    assert rows(people.database) == (before[0] + 2, before[1] + 1, before[2])


def test_a_suspended_persons_word_teaches_nobody_what_to_expect(crowd: MakeCrowd) -> None:
    auditor = {"name": "auditor", "role": "watch", "url": "http://127.0.0.1:9/v1", "model": "m", "criteria": "?"}
    people = crowd(judges=[auditor], audit={"probability": 1.0, "judge": "auditor"})
    people.regard(HELPFUL, "auditor", 1.0)
    people.talk((HELPFUL._replace(utility=1.0),), 2)
    turns = [people.answer(HELPFUL) for _ in range(40)]
    made = people.hear([people.episode(turn, people.word(turn, happy=False, who="mallory")) for turn in turns])
    with people.database.snapshot() as connection:
        suspended = set(connection.execute(select(vote.c.key).where(vote.c.reason == "suspended_submitter")).scalars())
        refused = connection.execute(select(vote.c.evidence).where(vote.c.key.in_(suspended))).scalars().all()
    assert suspended
    assert set(refused) == {""}
    assert all(is_imputed(item) for item in made if item.key in suspended)


@pytest.mark.parametrize(("silence", "reward"), [("renormalise", 1.0), ("unlabelled", None)])
def test_without_a_guess_a_refused_vote_pays_only_where_silence_does(
    crowd: MakeCrowd, silence: str, reward: float | None
) -> None:
    people = crowd(silence=silence, trust={"votes": 1}, reward={"missing": "renormalise"})
    turns = [people.answer(HELPFUL) for _ in range(2)]
    made = people.hear([people.episode(turn, people.word(turn, happy=False, who="bob")) for turn in turns])
    assert [item.reward for item in made] == [0.5, reward]


def test_the_trainer_takes_a_guess_for_the_users_part(crowd: MakeCrowd) -> None:
    """Where it normalises component by component, a vote that was refused has no part in it."""
    people = crowd(trust={"votes": 1})
    people.talk((HELPFUL,), 1)
    turns = [people.answer(HELPFUL) for _ in range(2)]
    _, capped = people.hear([people.episode(turn, people.word(turn, happy=False, who="bob")) for turn in turns])
    parts = parts_of(capped, 0.0, 1.0)
    assert parts["right"] == Part(1.0, 0.5)
    assert (parts["signals"].value, parts["signals"].weight) == pytest.approx((0.6, 0.5))


def test_a_programs_word_is_evidence_as_anybodys(warm: SilentCrowd) -> None:
    before = rows(warm.database)
    turn = warm.answer(HELPFUL)
    warm.hear([warm.episode(turn, warm.word(turn, happy=True, submitter=Submitter(id="ci", kind="code")))])
    assert rows(warm.database) == (before[0] + 1, before[1] + 1, before[2] + 1.0)


def test_only_users_are_guessed_about(warm: SilentCrowd) -> None:
    before = rows(warm.database)
    for purpose in ("sentinel", "rollout", "shadow"):
        (made,) = warm.hear([warm.episode(warm.answer(HELPFUL, purpose=purpose))])
        assert made.reward is None
    assert rows(warm.database) == before
