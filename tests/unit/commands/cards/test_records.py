from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.cards.command import described
from commands.cards.records import FILE, CardRecord, MoveRecord, PoolRecord, read_record, started, write_record
from contracts.errors import InvalidSettings

uses = st.sampled_from(["users", "training", "rollouts", "nobody"])
card_numbers = st.integers(0, 7)
records = st.builds(
    PoolRecord,
    cards=st.lists(st.builds(CardRecord, card=card_numbers, use=uses, since=st.just(1.0), why=st.just("")), max_size=8, unique_by=lambda item: item.card).map(tuple),
    move=st.none() | st.builds(MoveRecord, card=card_numbers, to=uses, why=st.just("asked"), begun_at=st.just(2.0)),
    move_seconds=st.just(7.0),
)  # fmt: skip


@given(held=st.none() | records, pool=st.lists(card_numbers, min_size=2, max_size=8, unique=True), data=st.data())
def test_a_start_deals_every_card_and_ends_what_was_cut_off(
    held: PoolRecord | None, pool: list[int], data: st.DataObject
) -> None:
    floor = data.draw(st.integers(1, len(pool) - 1))
    found = started(held, pool, floor, 9.0)
    assert found.move is None
    assert [item.card for item in found.cards] == pool
    assert {item.use for item in found.cards} <= {"users", "training"}
    assert len(found.of("users")) >= floor
    assert found.move_seconds in {0.0, 7.0}


def test_a_card_goes_where_it_was_on_its_way_to(tmp_path: Path) -> None:
    record = started(None, [0, 1, 2, 3], 1, 1.0)
    assert (record.of("users"), record.of("training")) == ([0, 1], [2, 3])
    write_record(
        tmp_path, PoolRecord(cards=record.cards, move=MoveRecord(card=1, to="training", why="spare", begun_at=2.0))
    )
    again = started(read_record(tmp_path), [0, 1, 2, 3], 1, 3.0)
    assert (again.of("users"), again.of("training")) == ([0], [1, 2, 3])
    assert again.moved_at == 3.0


@pytest.mark.parametrize("content", [b'{"cards": 3}', b'{"next": "\xff", "cards": []}'])
def test_a_damaged_record_is_named(tmp_path: Path, content: bytes) -> None:
    assert read_record(tmp_path) is None
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(InvalidSettings, match=r"cards\.json cannot be read"):
        read_record(tmp_path)


def test_operators_see_every_class() -> None:
    record = started(None, [0, 1], 1, 1.0).with_card(1, "nobody", 2.0, "broken")
    found = described(record, {0: "", 1: "it has 3 uncorrected memory errors"}, runs=True)
    assert [(row["card"], row["use"]) for row in found["cards"]] == [(0, "users"), (1, "nobody")]
    assert found["without"] == ["training", "rollouts"]
