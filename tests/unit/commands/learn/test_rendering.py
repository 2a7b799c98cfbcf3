from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from commands.learn.rendering import Renderer
from commands.learn.selection import Remark
from contracts.records import Provided, Streams, encode, pack_body, pack_ids
from pipelines.training.text.edits import AnswerTokenizer
from pipelines.training.text.edits import text_of as text_samples
from pipelines.training.text.rendering import NotRendered, TextRenderer, with_tokens
from pipelines.training.text.samples import TextSample
from runtime.template.chat_template import load_template
from tests.unit.commands.learn.builders import remark
from tests.unit.pipelines.training.builders import experience
from tests.worlds.paths import BASE

RIGHT, WRONG = '{"party":2,"time":"19:00","name":"Lee"}', '{"party":3,"time":"19:00","name":"Lee"}'
ASKED = "Book a table for two at 7 PM, name Lee."
TEMPLATE = load_template(str(BASE))
END = 1


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(BASE, 256, has_own_tokens=True)


def own(said: Remark, **ids: list[int]) -> Remark:
    """The same about an answer whose tokens are in the log."""
    return dataclasses.replace(said, body=replace(said.body, **{name: pack_ids(each) for name, each in ids.items()}))


def text_of(ids: tuple[int, ...] | None) -> str:
    assert ids is not None
    assert ids[-1] == END
    return TEMPLATE.tokenizer.decode(list(ids[:-1]), skip_special_tokens=False)


def test_an_edit_of_a_provider_is_a_target_and_a_pair_in_the_policys_own_template(renderer: Renderer) -> None:
    target, pair = renderer.samples_of(remark(ASKED, RIGHT, WRONG, revision=3))
    assert (target.kind, pair.kind, target.revision) == ("target", "pair", 3)
    assert list(target.prompt_ids) == TEMPLATE.encode([{"role": "user", "content": ASKED}])
    assert (text_of(target.chosen_ids), text_of(pair.chosen_ids), text_of(pair.rejected_ids)) == (RIGHT, RIGHT, WRONG)
    assert {min(target.token_weights), max(target.token_weights)} == {0.25, 1.0}


def test_the_exact_tokens_of_an_own_answer_are_learned_where_the_policy_is_the_same(renderer: Renderer) -> None:
    said = own(remark(ASKED, RIGHT), prompt_ids=[5, 6], completion_ids=[7, END])
    [target] = renderer.samples_of(said)
    assert (target.prompt_ids, target.chosen_ids, target.token_weights) == ((5, 6), (7, END), ())
    for other, record in ((Renderer(BASE, 256, has_own_tokens=False), said.record), (renderer, provided(said))):
        [target] = other.samples_of(dataclasses.replace(said, record=record))
        assert text_of(target.chosen_ids) == RIGHT


@pytest.mark.parametrize(
    ("said", "streams"),
    [
        (remark(ASKED, RIGHT), Streams(ce=1.0, is_good=True)),
        (remark(ASKED, RIGHT, WRONG), Streams(ce=1.0, pair=1.0, edit=RIGHT)),
        (remark(ASKED, WRONG, kind="thumb", is_good=False), Streams(thumb=1.0, is_good=False)),
    ],
    ids=["accepted", "edited", "thumb"],
)
def test_a_providers_answer_has_the_same_tokens_offline_and_online(
    renderer: Renderer, said: Remark, streams: Streams
) -> None:
    answers = AnswerTokenizer.of(BASE)
    assert answers is not None
    answer = encode(replace(provided(said), body=pack_body(said.body)))
    online = with_tokens(experience(key=said.record.key, streams=streams), answer, TextRenderer(TEMPLATE, answers), 512)
    found, expected = text_samples(online, answers, 512).samples, renderer.samples_of(said)

    def lessons(samples: Sequence[TextSample]) -> list[tuple[object, ...]]:
        return [(item.kind, item.prompt_ids, item.chosen_ids, item.rejected_ids, item.is_good) for item in samples]

    assert lessons(found) == lessons(expected)
    if said.kind == "edit":
        assert found[0].token_weights == expected[0].token_weights


def provided(said: Remark) -> Any:
    return replace(said.record, provided=Provided(origin="openai"))


def test_thumbs_and_pairs_of_answers_are_one_sample_each(renderer: Renderer) -> None:
    [thumb] = renderer.samples_of(remark(ASKED, WRONG, kind="thumb", is_good=False))
    assert (thumb.kind, thumb.is_good) == ("thumb", False)
    [pair] = renderer.samples_of(remark(ASKED, RIGHT, WRONG, kind="pair"))
    assert (text_of(pair.chosen_ids), text_of(pair.rejected_ids)) == (RIGHT, WRONG)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (remark(ASKED, RIGHT * 40, WRONG), "beyond_the_context"),
        (remark(ASKED * 1000, RIGHT, WRONG), "beyond_the_context"),
        (remark(ASKED, f"{RIGHT}<|end|>", WRONG), "edit_with_control_tokens"),
    ],
)
def test_what_cannot_become_tokens_has_a_name(renderer: Renderer, said: Remark, reason: str) -> None:
    with pytest.raises(NotRendered, match=reason):
        renderer.samples_of(said)


def test_an_edit_of_reasoning_and_answer_is_not_learned_as_an_answer_without_reasoning(renderer: Renderer) -> None:
    said = own(remark(ASKED, RIGHT, WRONG), prompt_ids=[5, 6], completion_ids=[7, END])
    said = dataclasses.replace(said, body=replace(said.body, reasoning="hm"))
    with pytest.raises(NotRendered, match="reasoning"):
        renderer.samples_of(said)


def test_equal_token_ids_are_one_object(renderer: Renderer) -> None:
    said = [own(remark(ASKED, RIGHT), prompt_ids=[5, 40_000], completion_ids=[7, END]) for _ in range(2)]
    first, second = (renderer.samples_of(each)[0].prompt_ids[1] for each in said)
    assert first is second


def test_what_is_half_believed_weighs_half(renderer: Renderer) -> None:
    assert {item.weight for item in renderer.samples_of(remark(ASKED, RIGHT, WRONG, weight=0.5))} == {0.5}


def test_the_text_of_a_call_is_not_learned_as_an_answer(renderer: Renderer) -> None:
    said = remark(ASKED, RIGHT)
    call = {"id": "c", "type": "function", "function": {"name": "book", "arguments": "{}"}}
    with pytest.raises(NotRendered, match="tool_call"):
        renderer.samples_of(dataclasses.replace(said, body=replace(said.body, tool_calls=[call])))
