"""Rates with their intervals: by version beside the gate, in tiles, in the table of versions."""

import pytest
from msgspec.structs import replace
from sqlalchemy import bindparam, insert, select, update

from contracts.records import Generation, Provided, decode_shape, encode
from contracts.tables import behaviour, generation
from runtime.settings import Settings
from services.dashboard.live.charts import acceptance
from services.dashboard.live.queries import Costs, ScoredAnswer, SentinelValue, UserReward, read_costs
from services.dashboard.live.tiles import LEAST_FOR_RATE, TOO_FEW, FrontFigures, provider_tiles, tenant_tiles
from services.provider import ProviderSettings
from tests.unit.services.dashboard.conftest import ReaderOf
from tests.worlds.dashboard.databases import reading, writing
from tests.worlds.dashboard.seed import NUM_VERSIONS, REFUSED, STARTED
from tests.worlds.dashboard.seed_rewards import sums


def test_users_and_gate_stand_side_by_side_with_their_intervals() -> None:
    users = [UserReward(2, 3, 1.0), UserReward(1, 400, 0.5)]
    columns = acceptance(users, [SentinelValue(1, 200, 0.9, True), SentinelValue(3, 0, 0.4, False)])
    assert columns["at"] == [1, 2, 3]
    assert columns["users"] == [0.5, 1.0, None]
    assert columns["users_num"] == [400, 3, None]
    few_low = columns["users_low"][1]
    assert few_low is not None
    assert few_low < 0.5, "three happy users prove little"
    assert columns["users_low"][0] == pytest.approx(0.451, abs=1e-3)
    assert columns["gate"] == [0.9, None, None]
    assert columns["refused"] == [None, None, 0.4]
    assert columns["gate_low"][2] is None, "a verdict that does not say how many"


def test_a_home_shows_both(small: Settings, reader_of: ReaderOf) -> None:
    with writing(small) as connection:
        rows = [
            sums(3, "reward", 50, 0.6),
            sums(3, "reward", 50, 0.8, task="tutor"),
            sums(3, "reward", 9, 0.1, cluster="x"),
        ]
        connection.execute(insert(behaviour), rows)
    state = reader_of(small).read(STARTED)
    columns = state.acceptance
    assert columns["at"] == list(range(NUM_VERSIONS))
    assert columns["users_num"][3] == 100
    assert columns["users"][3] == pytest.approx(0.7)
    assert columns["gate_num"][3] == 200
    assert columns["refused"][REFUSED] == 0.861
    by_number = {row.version: row for row in state.versions}
    assert by_number[3].num_sentinels == 200


def test_a_version_knows_how_sure_its_rate_is(small: Settings, reader_of: ReaderOf) -> None:
    for row in reader_of(small).read(STARTED).versions:
        if row.num_labelled:
            assert row.accepted_low is not None
            assert row.accepted_high is not None
            assert row.accepted_low <= row.num_accepted / row.num_labelled <= row.accepted_high


RATES = (
    (0, "\N{EN DASH}", "no labels yet"),
    (LEAST_FOR_RATE - 1, TOO_FEW, "9 of 9 labelled answers; a rate needs 10"),
    (14, "100.0 %", "78 to 100 %, of the last 14 labelled"),
    (500, "100.0 %", "98 to 100 %, of the last 200 labelled"),
)


def test_a_rate_says_how_sure_it_is(small: Settings, reader_of: ReaderOf) -> None:
    state = reader_of(small).read(STARTED)
    for num, value, detail in RATES:
        answers = [ScoredAnswer(float(place), 1, 1.0) for place in range(num)]
        tiles = {tile.name: tile for tile in tenant_tiles(1, answers, state.generations, state.signals)}
        assert (tiles["Users accept"].value, tiles["Users accept"].detail) == (value, detail), num


PRICED = ProviderSettings(url="https://api.openai.com/v1", model="big", input_price=1.0, output_price=2.0)


def test_the_cost_of_an_accepted_answer_counts_those_that_nobody_accepted() -> None:
    tiles = provider_tiles(FrontFigures(PRICED, Costs([1.0, 0.0, 0.0, 0.0, 1.0], 4, 2.0)))
    assert [(tile.value, tile.detail) for tile in tiles] == [
        ("big", "openai; may train other models: no ([provider] may_train)"),
        ("$1.25", "$0.5 an answer, of the last 5 labelled; 1 without a known cost"),
    ]


@pytest.mark.parametrize(
    ("provider", "costs", "says"),
    [
        (PRICED, Costs([1.0], 0, 0.0), "no usage"),
        (ProviderSettings(url="https://llm.example/v1"), Costs([1.0], 0, 0.0), "set input_price and output_price"),
        (PRICED, Costs([0.0], 1, 0.5), "$0.5 an answer"),
    ],
)
def test_a_cost_that_nobody_knows_is_no_number(provider: ProviderSettings, costs: Costs, says: str) -> None:
    cost = provider_tiles(FrontFigures(provider, costs))[1]
    assert cost.value == "\N{EN DASH}"
    assert says in cost.detail


def test_costs_stand_in_the_records_of_the_newest_labelled_answers(small: Settings) -> None:
    table = generation.c
    with writing(small) as connection:
        rows = connection.execute(select(table.completion_id, table.record)).all()
        changed = [
            {"id": row.completion_id, "of": encode(replace(record, provided=Provided(origin="openai", cost=0.5)))}
            for row in rows[::2]
            for record in [decode_shape(Generation, row.record)]
        ]
        where = table.completion_id == bindparam("id")
        connection.execute(update(generation).where(where).values(record=bindparam("of")), changed)
    with reading(small) as connection:
        costs = read_costs(connection, 10)
    assert len(costs.rewards) == 10
    assert 0 < costs.num_known < 10
    assert costs.dollars == costs.num_known * 0.5
