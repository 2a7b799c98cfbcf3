"""`exact` and `token_f1`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from contracts.errors import InvalidTask
from rewards.verifiers import exact, token_f1
from rewards.verifiers.check import Answer, Check
from tests.each_case import each_case

ALL = {"casefold": True, "punctuation": True, "articles": True}


def run(module: Any, text: str, reference: str | None, config: Mapping[str, Any]) -> Check:
    check = module.build(config)(Answer(text, {} if reference is None else {"reference": reference}))
    assert isinstance(check, Check)
    return check


@each_case(
    ("text", "reference", "config", "value"),
    [
        (" Paris\n", "Paris", {}, 1.0),
        (" Paris", "Paris", {"strip": False}, 0.0),
        ("paris", "Paris", {}, 0.0),
        ("paris", "Paris", {"casefold": True}, 1.0),
        ("STRASSE", "straße", {"casefold": True}, 1.0),
        ("Paris.", "Paris", {}, 0.0),
        ("“Paris”.", "Paris", {"punctuation": True}, 1.0),
        ("The  Tower, of a King!", "tower of king", ALL, 1.0),
        ("theatre", "atre", ALL, 0.0),
        ("Paris or Rome", "Paris", ALL, 0.0),
        ("Paris Paris", "Paris", ALL, 0.0),
        ("", "Paris", ALL, 0.0),
        ("Par\u200bis", "Paris", ALL, 0.0),
        ("cafe\u0301", "caf\u00e9", {}, 1.0),
        ("cafe\u0301", "caf\u00e9", {"raw": True}, 0.0),
        ("a\u00a0b", "a b", {}, 1.0),
        ("a\u202fb", "a\u2009b", {}, 1.0),
        ("a\u00a0b", "a b", {"raw": True}, 0.0),
        ("a\nb", "a b", {}, 0.0),
        ("<think>Rome</think>\n\nParis", "Paris", {"strip": False}, 1.0),
        ("<think>Paris", "Paris", {}, 0.0),
        ("[THINK]Rome[/THINK]Paris", "Paris", {}, 1.0),
        (
            "<|channel|>analysis<|message|>Rome<|end|><|start|>assistant<|channel|>final<|message|>Paris<|return|>",
            "Paris",
            {},
            1.0,
        ),
        ("Rome\n</think>\nParis", "Paris", {}, 1.0),
        ("Paris <think>Rome</think>", "Paris", {}, 0.0),
        ("Rome", '["Paris","Rome"]', {"many": True}, 1.0),
        ('["Paris","Rome"]', '["Paris","Rome"]', {"many": True}, 0.0),
        ('["Paris","Rome"]', '["Paris","Rome"]', {}, 1.0),
    ],
)
def test_exact(text: str, reference: str, config: Mapping[str, Any], value: float) -> None:
    assert run(exact, text, reference, config).value == value


@each_case("reference", ["", "  ", "the", "...", "a, an."])
@each_case("module", [exact, token_f1])
def test_a_reference_of_nothing_does_not_pay_for_an_empty_answer(module: Any, reference: str) -> None:
    check = run(module, "", reference, ALL if module is exact else {})
    assert (check.value, check.fault) == (None, "user")


@pytest.mark.parametrize("reference", ["[1, 2]", "[]", '["a", null]'])
def test_a_list_of_anything_but_texts_is_the_apps_mistake(reference: str) -> None:
    assert run(token_f1, "x", reference, {}).fault == "user"
    assert run(exact, "x", reference, {"many": True}).fault == "user"


@pytest.mark.parametrize("module", [exact, token_f1])
def test_without_a_reference_there_is_nothing_to_say(module: Any) -> None:
    assert run(module, "x", None, {}).status == "unlabelled"


@pytest.mark.parametrize(
    ("text", "reference", "value"),
    [
        ("the Eiffel Tower", "Eiffel tower!", 1.0),
        ("tower", "Eiffel tower", 2 / 3),
        ("Rome", "Eiffel tower", 0.0),
        ("", "Eiffel tower", 0.0),
        ("Eiffel tower", '["Big Ben", "Eiffel tower"]', 1.0),
        ("[draft] tower", "[draft] tower", 1.0),
    ],
)
def test_token_f1(text: str, reference: str, value: float) -> None:
    assert run(token_f1, text, reference, {}).value == pytest.approx(value)


def test_saying_everything_or_the_same_again_costs_precision() -> None:
    honest = run(token_f1, "tower in Paris", "Eiffel tower", {}).value or 0.0
    for hack in ("tower " * 100, "Eiffel tower " * 50, " ".join(["Eiffel", "tower", *map(str, range(200))])):
        assert (run(token_f1, hack, "Eiffel tower", {}).value or 0.0) < honest


def test_the_best_of_several_references_counts_not_their_union() -> None:
    both = json.dumps(["Eiffel tower", "iron lady"])
    assert (run(token_f1, "Eiffel tower iron lady", both, {}).value or 0.0) == pytest.approx(2 / 3)


def test_characters_are_compared_where_words_are_not_spaced() -> None:
    assert run(token_f1, "東京駅", "東京", {}).value == 0.0
    assert run(token_f1, "東京駅", "東京", {"characters": True}).value == pytest.approx(0.8)


@pytest.mark.parametrize(("module", "config"), [(exact, {"casefld": True}), (token_f1, {"characters": "some"})])
def test_a_wrong_config_is_refused(module: Any, config: dict[str, Any]) -> None:
    with pytest.raises(InvalidTask) as caught:
        module.build(config)
    assert caught.value.param == next(iter(config))
