"""What release writes is what the Rollout page reads: the real assessment of a product with a known truth."""

import json
import time

from pipelines.release.train.answers import Answers
from pipelines.release.train.assess import assess
from runtime.settings import Settings
from tests.unit.services.dashboard.conftest import ReaderOf
from tests.worlds.dashboard.databases import writing
from tests.worlds.dashboard.seed_rollout import add_train
from tests.worlds.release.product import LATER, RULES, SETTINGS, product, standing


def test_every_fact_of_a_real_assessment_is_shown(small: Settings, reader_of: ReaderOf) -> None:
    answers = Answers()
    answers.put(product(0, 2_000))
    facts = json.loads(json.dumps(assess(answers, RULES, SETTINGS, LATER, standing(1))))
    now = time.time()
    with writing(small) as connection:
        add_train(connection, now, evidence=facts)
    train = reader_of(small).read(now).rollout.train
    assert train is not None
    assert len(train.metrics) == len(facts["metrics"]) > 3
    assert (train.says, train.promise) == (facts["says"], facts["promise"])
    assert train.says
    assert train.promise
    assert train.num_canary_units == facts["num_canary_units"] > 0
    assert train.sample_ratio is not None
    assert train.sample_ratio.verdict == facts["sample_ratio"]["verdict"]
    assert train.units.startswith(("an arm is drawn for each", "drawn by"))
    for shown, fact in zip(train.metrics, facts["metrics"], strict=True):
        for name in (
            "name",
            "task",
            "kind",
            "better",
            "canary",
            "live",
            "difference",
            "low",
            "high",
            "margin",
            "verdict",
            "says",
        ):
            assert getattr(shown, name) == fact[name], name
        assert (shown.num_canary, shown.num_live, shown.required) == (
            fact["num_canary"],
            fact["num_live"],
            fact["required"],
        )
