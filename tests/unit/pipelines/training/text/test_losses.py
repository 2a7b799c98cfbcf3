"""What the losses of text divide by, what a part of a batch keeps, and what a user's changes weigh."""

import math

import pytest

from pipelines.training.text.losses import BETA, baseline_of, text_losses
from pipelines.training.text.samples import KEPT, Kind, TextBatch, TextSample, mismatched_rows, rows_of, token_weights
from tests.each_case import each_case


def text(kind: Kind, *, chosen: tuple[int, ...] = (5, 6), weight: float = 1.0, is_good: bool = True) -> TextSample:
    rejected = (7,) if kind == "pair" else None
    return TextSample(
        key=f"{kind}{chosen}", revision=0, kind=kind, prompt_ids=(1, 2), chosen_ids=chosen, rejected_ids=rejected,
        weight=weight, is_good=is_good,
    )  # fmt: skip


def test_each_kind_is_a_mean_over_its_own_count() -> None:
    alone = text_losses(TextBatch.of([text("target")]), [-3.0], [0.0])
    assert alone.values == {"target": 1.5}
    mixed = [text("target"), text("pair"), text("pair"), text("thumb")]
    found = text_losses(TextBatch.of(mixed), [-3.0, -1.0, -2.0, -1.0, -2.0, -4.0], [0.0, -1.0, -2.0, -1.0, -2.0, -4.0])
    assert found.values == {"target": 1.5, "pair": pytest.approx(math.log(2.0)), "thumb": 0.5}
    assert found.factors == pytest.approx([-0.5, -BETA / 4, BETA / 4, -BETA / 4, BETA / 4, -BETA / 4])


def test_text_that_is_trusted_half_teaches_half_even_alone() -> None:
    for kind, current in (("target", [-3.0]), ("pair", [-1.0, -1.0]), ("thumb", [-1.0])):
        whole, half = (
            text_losses(TextBatch.of([text(kind, weight=weight)]), current, [-2.0] * len(current))  # type: ignore[arg-type]
            for weight in (1.0, 0.5)
        )
        assert half.factors == pytest.approx([0.5 * factor for factor in whole.factors])
        assert half.values == pytest.approx({name: 0.5 * value for name, value in whole.values.items()})


def test_a_part_of_a_batch_pulls_as_it_did_in_the_whole() -> None:
    samples = [text("target"), text("target", chosen=(8, 9, 3)), text("pair")]
    batch = TextBatch.of(samples)
    whole = text_losses(batch, [-1.0, -2.0, -1.0, -1.0], [0.0] * 4)
    part = text_losses(TextBatch(samples[1:2], batch.counts), [-2.0], [0.0])
    assert part.factors == whole.factors[1:2]
    assert TextBatch.joined([TextBatch(), TextBatch(samples[:1], batch.counts)]).counts == batch.counts


def test_thumbs_are_compared_with_what_others_gained() -> None:
    good, bad = text("thumb"), text("thumb", is_good=False)
    found = text_losses(TextBatch.of([good, bad]), [-1.0, -1.0], [-4.0, -4.0], baseline=3.0)
    assert found.values == {"thumb": 0.5}
    assert found.factors[0] == -found.factors[1] < 0
    assert baseline_of([-1.0, -1.0], [-3.0, -5.0]) == 3.0
    assert baseline_of([-3.0], [-1.0]) == baseline_of([], []) == 0.0


def test_the_rows_of_a_baseline_mix_prompts_and_answers_of_thumbs_alone() -> None:
    first, second = text("thumb", chosen=(5,)), text("thumb", chosen=(6, 7))
    assert [row.completion_ids for row in mismatched_rows([first, text("pair"), second])] == [(6, 7), (5,)]
    assert mismatched_rows([first]) == []
    assert [row.completion_ids for row in rows_of([text("pair"), first])] == [(5, 6), (7,), (5,)]


@each_case(
    ("answer", "edited", "changed"),
    [
        ([1, 2, 3, 9], [1, 7, 3, 9], [1]),
        ([1, 2, 3, 9], [1, 7, 8, 2, 3, 9], [1, 2]),
        ([1, 2, 3, 9], [1, 3, 9], [1]),  # what follows a deletion stands where the user wanted it
        ([1, 2, 9], [4, 5], [0, 1]),
        ([1, 2, 9], [1, 2, 9], []),
        ([1, 2], [1, 2, 9], [2]),
    ],
)
def test_what_a_user_changed_weighs_more_than_what_stayed(
    answer: list[int], edited: list[int], changed: list[int]
) -> None:
    assert token_weights(answer, edited) == tuple(1.0 if at in changed else KEPT for at in range(len(edited)))


def test_extreme_margins_overflow_nothing() -> None:
    found = text_losses(TextBatch.of([text("pair")]), [-1e5, 0.0], [0.0, -1e5])
    assert found.values["pair"] == pytest.approx(2e5 * BETA)
    assert found.factors == pytest.approx([-BETA, BETA])
