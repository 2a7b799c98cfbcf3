from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InvalidTask
from contracts.tasks import Task
from contracts.tasks.section import Source
from examples.verifiers import instruction
from examples.verifiers.instructions import INSTRUCTIONS
from rewards.panel import graders_of
from rewards.verifiers.check import Answer, Check
from tests.adversary.attacks.cases import look_alikes
from tests.each_case import each_case

PROMPT = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why is the\nsky blue?"}]
DEFAULTS: dict[str, dict[str, Any]] = {
    "include_keywords": {"value": ["a b"]},
    "exclude_keywords": {"value": ["zz"]},
    "keyword_frequency": {"word": "a b", "at_least": 3},
    "letter_frequency": {"letter": "q", "at_least": 2},
    "language": {"value": "en"},
    "starts_with": {"value": "zz"},
    "ends_with": {"value": "zz"},
}


def follow(text: str, *checks: dict[str, Any], reference: Any = None, **config: Any) -> Check:
    metadata = (
        {} if reference is None else {"reference": reference if isinstance(reference, str) else json.dumps(reference)}
    )
    check = instruction.build({"checks": list(checks), **config})(Answer(text, metadata, PROMPT))
    assert isinstance(check, Check)
    return check


PASSES = [
    ("min_words", {"value": 3}, "one two-fold three"),
    ("max_words", {"value": 3}, "one two three."),
    ("min_sentences", {"value": 2}, "It is 3.5 m. Good!"),
    ("max_sentences", {"value": 1}, "It is 3.5 m, really?!"),
    ("min_sentences", {"value": 2}, "好。很好\uff01"),
    ("min_paragraphs", {"value": 2}, "one\n \ntwo"),
    ("max_paragraphs", {"value": 1}, "one\ntwo"),
    ("min_characters", {"value": 3}, "abc"),
    ("max_characters", {"value": 3}, " abc "),
    ("unique_lines", {}, "one\n\ntwo\n\nthree"),
    ("include_keywords", {"value": ["sky", "the blue"]}, "SKY, the\nblue one"),
    ("exclude_keywords", {"value": ["art"]}, "party"),
    ("keyword_frequency", {"word": "sky", "value": 2}, "sky Sky skyline"),
    ("letter_frequency", {"letter": "z", "at_most": 1}, "Zoo"),
    ("no_commas", {}, "no. commas; here"),
    ("language", {"value": "de"}, "Das ist ein kurzer deutscher Satz über das Wetter.\n```\nprint('hello world')\n```"),
    ("all_lowercase", {}, "all small 1."),
    ("all_uppercase", {}, "ALL LARGE 1."),
    ("capital_words", {"at_least": 2}, "NASA and ESA but not I"),
    ("title_words", {"value": 2}, "The quick Fox IS here"),
    ("bullets", {"value": 2}, "- one\n  * two\n---\n* \n*three*"),
    ("numbered_items", {"value": 2}, "1. one\n2) two\n3.5 m"),
    ("headings", {"value": 1}, "# One\n#two\n###### "),
    ("sections", {"at_least": 2}, "Section 1\na\n## Section 2: b"),
    ("sections", {"mark": "Part", "value": 1}, "PART I\nparty 2"),
    ("placeholders", {"value": 2}, "[name] and [address], [a link](x), [], [ ]"),
    ("highlights", {"value": 2}, "*one* and **two words**, 2 * 3 * 4, ** **"),
    ("title", {}, "<<Joy>>\ntext"),
    ("json_format", {}, '```json\n{"a": 1}\n```'),
    ("no_code_fence", {}, "use `x` inline"),
    ("starts_with", {"value": "Dear"}, "\nDear all"),
    ("ends_with", {"value": "Bye."}, "Well. Bye.\n"),
    ("quoted", {}, '"all of it"'),
    ("two_responses", {}, "one\n******\ntwo"),
    ("postscript", {}, "Text.\n\nP.S. and this"),
    ("repeat_prompt", {}, "Why is the sky blue? Because."),
]
FAILS = [
    ("min_words", {"value": 3}, "one two - ! ."),
    ("max_words", {"value": 3}, "one two three four"),
    ("min_sentences", {"value": 3}, "One. ... !!! ? ."),
    ("max_sentences", {"value": 1}, "One. Two"),
    ("min_paragraphs", {"value": 3}, "one\n\n-\n\n***"),
    ("max_paragraphs", {"value": 1}, "one\n\ntwo"),
    ("min_characters", {"value": 5}, "a    \n\n\n"),
    ("max_characters", {"value": 3}, "abcd"),
    ("unique_lines", {}, "Buy now\n- buy now!"),
    ("include_keywords", {"value": ["sky"]}, "skyline"),
    ("exclude_keywords", {"value": ["secret"]}, "a SECRET thing"),
    ("exclude_keywords", {"value": ["secret"]}, "a se\u200bcret thing"),
    ("exclude_keywords", {"value": ["secret"]}, "a \uff53\uff45\uff43\uff52\uff45\uff54 thing"),
    ("keyword_frequency", {"word": "sky", "value": 1}, "sky sky"),
    ("letter_frequency", {"letter": "z", "at_least": 2}, "Zoo"),
    ("no_commas", {}, "one, two"),
    ("no_commas", {}, "一\uff0c二"),
    ("language", {"value": "de"}, "This is a short English sentence about the weather."),
    ("language", {"value": "de"}, "123 !!!"),
    ("all_lowercase", {}, "Not small"),
    ("all_lowercase", {}, "123"),
    ("all_uppercase", {}, "NOT large"),
    ("capital_words", {"at_most": 0}, "NASA"),
    ("title_words", {"at_least": 1}, "none OF these A"),
    ("bullets", {"value": 2}, "- one\n- \n-two\n---"),
    ("numbered_items", {"at_least": 2}, "1. one\n2."),
    ("headings", {"at_least": 1}, "#hashtag"),
    ("sections", {"at_least": 2}, "Section 1\nSection 1"),
    ("placeholders", {"at_least": 2}, "[name] [name]"),
    ("highlights", {"at_least": 2}, "*one* *one* ****"),
    ("title", {}, "<< >>"),
    ("json_format", {}, '"any text becomes JSON in quotes"'),
    ("json_format", {}, '{"a":1} and more'),
    ("no_code_fence", {}, "see\n```\nx\n```"),
    ("starts_with", {"value": "Dear"}, "dear all"),
    ("ends_with", {"value": "Bye."}, "Bye. And more."),
    ("quoted", {}, '"one" and "two"'),
    ("quoted", {}, '""'),
    ("two_responses", {}, "one\n******\n ONE\n******\nthree"),
    ("two_responses", {}, "same\n******\nsame"),
    ("two_responses", {}, "one\n******\n"),
    ("postscript", {}, "P.S. only this"),
    ("postscript", {}, "Text.\nP.S."),
    ("repeat_prompt", {}, "Why is the sky blue?"),
    ("repeat_prompt", {}, "Because. Why is the sky blue?"),
]


@each_case(("check", "parameters", "text"), PASSES)
def test_an_answer_in_the_form_that_was_asked_for_passes(check: str, parameters: dict[str, Any], text: str) -> None:
    assert follow(text, {"check": check, **parameters}) == Check(1.0)


@each_case(("check", "parameters", "text"), FAILS)
def test_an_answer_in_another_form_fails_and_says_why(check: str, parameters: dict[str, Any], text: str) -> None:
    found = follow(text, {"check": check, **parameters})
    assert (found.value, found.fault) == (0.0, "model")
    assert found.reason.startswith(f"{check}: ")


@each_case(("check", "parameters", "text"), look_alikes.CASES)
def test_what_only_looks_like_it_neither_passes_nor_hides(check: str, parameters: dict[str, Any], text: str) -> None:
    assert follow(text, {"check": check, **parameters}).value == 0.0


@each_case(
    ("check", "parameters", "text"),
    [
        (
            "exclude_keywords",
            {"value": ["cop", "a"]},
            "\u0421\u043e\u0440 \u0438 \u043f\u044b\u043b\u044c, \u0430 \u043d\u0435 \u0434\u043e\u043c.",
        ),
        ("include_keywords", {"value": ["\u0441\u043e\u0440"]}, "\u0421\u043e\u0440 \u0438 \u043f\u044b\u043b\u044c."),
        ("letter_frequency", {"letter": "\u043e", "value": 3}, "\u043c\u043e\u043b\u043e\u043a\u043e"),
        ("letter_frequency", {"letter": "a", "at_most": 0}, "\u0430 \u0434\u043e\u043c \u0438 \u043b\u0435\u0441"),
        ("exclude_keywords", {"value": ["resume"]}, "My r\u00e9sum\u00e9 is here"),
        ("include_keywords", {"value": ["caf\u00e9"]}, "the cafe\u0301 there"),
        ("starts_with", {"value": "\u0394\u03b5\u03c2"}, "\u0394\u03b5\u03c2 \u03b1\u03c5\u03c4\u03cc"),
        ("max_words", {"value": 2}, "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902"),
        ("max_words", {"value": 1}, "\u0645\u06cc\u200c\u0631\u0648\u0645"),
        ("all_lowercase", {}, "acme\u2122 is fine \U0001f600\ufe0f"),
        ("no_commas", {}, "\u20ac5.00; it\u2019s \u201cfine\u201d \u2014 \u015fi \u021bara"),
        ("all_uppercase", {}, "\u0412\u0421\u0401 \u0425\u041e\u0420\u041e\u0428\u041e"),
        ("starts_with", {"value": "Dear"}, "\ufeffDear all"),
    ],
)
def test_an_honest_text_in_any_script_stays_right(check: str, parameters: dict[str, Any], text: str) -> None:
    assert follow(text, {"check": check, **parameters}) == Check(1.0)


def test_every_check_is_tested_both_ways() -> None:
    assert {check for check, _, _ in PASSES} == {check for check, _, _ in FAILS} == set(INSTRUCTIONS)
    assert len(INSTRUCTIONS) >= 25


@each_case("check", ["exclude_keywords", "no_commas", "max_words", "no_code_fence", "unique_lines"])
@each_case("text", ["", " \n\t"])
def test_an_empty_answer_does_not_pass_what_only_forbids(check: str, text: str) -> None:
    parameters = (
        {"value": ["x"] if check == "exclude_keywords" else 5} if check in {"exclude_keywords", "max_words"} else {}
    )
    assert follow(text, {"check": check, **parameters}) == Check(0.0, fault="model", reason="the answer is empty")


def test_all_must_pass_or_each_has_its_share() -> None:
    checks = {"check": "all_lowercase"}, {"check": "max_words", "value": 1}
    assert follow("one two", *checks) == Check(0.0, fault="model", reason="max_words: 2 words, 1 or fewer asked")
    share = follow("one two", *checks, score="share")
    assert (share.value, share.fault) == (0.5, "none")
    assert "max_words" in share.reason
    assert follow("One two", *checks, score="share").fault == "model"


def test_each_sample_can_bring_its_own_checks() -> None:
    assert follow("one two", reference=[{"check": "max_words", "value": 2}]).value == 1.0
    assert follow("one two", reference=[{"check": "max_words", "value": 1}]).value == 0.0
    assert follow("one two").status == "unlabelled"


def test_checks_of_the_file_and_of_the_sample_add_up_where_the_file_says_so() -> None:
    always = {"check": "all_lowercase"}
    sample = [{"check": "max_words", "value": 1}]
    assert follow("one two", always, reference=sample).value == 1.0
    assert follow("one two", always, reference=sample, from_reference=True, score="share").value == 0.5


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("", "not JSON"),
        ("{}", "list"),
        ([], "list"),
        ([{"check": "all_lowercase"}] * 101, "list"),
        (["max_words"], "0: it needs `check`"),
        ([{"check": "all_lowercase"}, {"check": "max_wrods"}], r"1\.check"),
        ([{"check": "max_words"}], "0.value"),
    ],
)
def test_a_reference_with_a_mistake_is_the_apps_fault(reference: Any, says: str) -> None:
    found = follow("text", reference=reference)
    assert (found.value, found.status, found.fault) == (None, "unscored", "user")
    assert says.replace("\\", "") in found.reason


def test_a_prompt_that_cannot_be_repeated_is_the_apps_fault() -> None:
    check: Any = instruction.build({"checks": [{"check": "repeat_prompt"}]})
    for messages in ([], [{"role": "user", "content": ""}], [{"role": "user"}]):
        found = check(Answer("text", {}, messages))
        assert found.fault == "user"
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert check(Answer("Hi there", {}, parts)).value == 1.0


@each_case(
    ("config", "param"),
    [
        ({"checks": [], "from_reference": False}, "checks"),
        ({"checks": "max_words"}, "checks"),
        ({"checks": [{"value": 1}]}, "checks.0"),
        ({"checks": [{"check": "all_lowercase"}, {"check": "nosuch"}]}, "checks.1.check"),
        ({"checks": [{"check": "max_words", "value": -1}]}, "checks.0.value"),
        ({"checks": [{"check": "max_words", "value": "many"}]}, "checks.0.value"),
        ({"checks": [{"check": "all_lowercase", "value": 1}]}, "checks.0.value"),
        ({"checks": [{"check": "bullets"}]}, "checks.0"),
        ({"checks": [{"check": "bullets", "value": 1, "at_most": 2}]}, "checks.0"),
        ({"checks": [{"check": "bullets", "at_least": 3, "at_most": 2}]}, "checks.0"),
        ({"checks": [{"check": "include_keywords", "value": ["a", " "]}]}, "checks.0"),
        ({"checks": [{"check": "language", "value": "german"}]}, "checks.0.value"),
        ({"score": "most"}, "score"),
    ],
)
def test_a_wrong_check_is_refused_with_the_path_to_it(config: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        instruction.build(config)
    assert caught.value.param == param


def test_a_wrong_check_of_a_task_file_is_named_by_its_line() -> None:
    text = """name = "t"
[[verifiers]]
name = "form"
kind = "instruction"
[[verifiers.config.checks]]
check = "all_lowercase"
[[verifiers.config.checks]]
check = "max_words"
value = -1
"""
    checks = [{"check": "all_lowercase"}, {"check": "max_words", "value": -1}]
    rule = {"name": "form", "kind": "instruction", "config": {"checks": checks}}
    task = Task.model_validate({"name": "t", "signals": {"a": {"type": "text"}}, "verifiers": [rule]})
    task._source = Source(Path("t.toml"), text)
    with pytest.raises(InvalidTask, match=r"t\.toml:9: .*config\.checks\.1\.value"):
        graders_of(task)


def test_a_hostile_answer_is_read_quickly() -> None:
    built = []
    for name, item in INSTRUCTIONS.items():
        needs_value = "value" in item.parameters.model_fields and name not in {
            "two_responses",
            "postscript",
            "repeat_prompt",
        }
        built.append({"check": name, **DEFAULTS.get(name, {"value": 3} if needs_value else {})})
    started = time.process_time()
    num = 10_000
    for text in (
        "." * num + "a",
        "- " + " " * num,
        "[" + "a" * num,
        "*a" * num,
        "\n" * num + "a",
        "```" * num,
        "a-" * num,
    ):
        follow(text, *built, score="share")
    assert time.process_time() - started < 2.0


@each_case(
    ("text", "name", "count"),
    [
        ("well-known state-of-the-art don't", "words", 3),
        ("**bold** _x_ - * ---", "words", 2),
        ("1,000 apples at 3.14", "words", 4),
        ("one.two.three", "words", 3),
        ("Dr. Smith, e.g., met Mrs. Jones at 5 p.m. in the U.S. once.", "sentences", 1),
        ("One. Two! Three?", "sentences", 3),
        ("1. a\n2. b\n3. c", "sentences", 1),
        ("a\r\n\r\nb", "paragraphs", 2),
        ("a\r\rb\u2029c", "paragraphs", 3),
        ("a\r\nb", "characters", 3),
        ("\u2022 a\n\u2013 b\n- c", "bullets", 3),
        ("```\n- a\n# b\n1. c\n```", "bullets", 0),
        ("```\n- a\n# b\n1. c\n```", "headings", 0),
        ("**1.** a\n2) b", "numbered_items", 2),
        ("<think>a b c</think>d", "words", 1),
    ],
)
def test_counts_are_those_of_a_reader(text: str, name: str, count: int) -> None:
    exact = [{"check": name, "value": count}]
    bounds = [{"check": f"max_{name}", "value": count}, {"check": f"min_{name}", "value": count}]
    checks = exact if name in INSTRUCTIONS else bounds
    assert instruction.build({"checks": checks})(Answer(text)) == Check(1.0)
