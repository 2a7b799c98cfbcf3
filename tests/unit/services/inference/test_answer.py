"""Text is shown when it is final, wherever the boundaries of tokens and pieces are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.answers.parts import NOTHING, AnswerPart, CallPart
from contracts.sampling import Span
from engines.wire import Piece, SampledToken
from services.inference.answer import Choice, Delta, StopFinder, merged
from services.inference.tools.parser import Detokenizer, PlainParser
from tests.unit.services.inference.world import END, make_tokenizer

TOKENIZER = make_tokenizer()


def tokens_of(text: str) -> list[SampledToken]:
    return [SampledToken(token_id, -1.0) for token_id in TOKENIZER.encode(text).ids]


@given(st.text())
def test_the_shown_parts_add_up_to_the_text(text: str) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    parts = [detokenizer.push(token.id) for token in tokens_of(text)]

    assert "".join([*parts, detokenizer.flush()]) == text


@given(st.lists(st.integers(0, 259), max_size=30))
def test_any_ids_give_what_decoding_them_at_once_gives(ids: list[int]) -> None:
    detokenizer = Detokenizer(TOKENIZER)
    shown = "".join([*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()])

    assert shown == TOKENIZER.decode(ids, skip_special_tokens=True)


def test_half_a_character_waits_for_the_rest() -> None:
    detokenizer = Detokenizer(TOKENIZER)

    assert [detokenizer.push(token.id) for token in tokens_of("a🍽b")] == ["a", "", "", "", "🍽", "b"]


@given(st.lists(st.text("abc", max_size=4)), st.lists(st.text("abc", min_size=1, max_size=3), max_size=4))
def test_text_is_cut_before_the_first_stop_wherever_parts_end(parts: list[str], stops: list[str]) -> None:
    finder = StopFinder(stops)
    shown, found = "", False
    for part in parts:
        text, found = finder.push(part)
        shown += text
        if found:
            break
    if not found:
        shown += finder.flush()

    text = "".join(parts)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    if not ends:
        assert (shown, found) == (text, False)
    else:
        assert found
        assert text.startswith(shown)
        assert any(text[len(shown) :].startswith(stop) for stop in stops)
        assert not any(stop in shown for stop in stops)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_tokens_end_with_the_one_that_completes_the_stop(size: int) -> None:
    choice = Choice(0, PlainParser(TOKENIZER), ["END"])
    tokens = tokens_of("so ENough END more")
    shown = ""
    for start in range(0, len(tokens), size):
        spans = [Span(start, start)]
        shown += choice.add(Piece(tokens[start : start + size], spans, None)).text
        if choice.finish_reason:
            break

    assert shown == choice.text == "so ENough "
    assert choice.finish_reason == "stop"
    assert choice.tokens == tokens[: len("so ENough END")]
    assert all(span.start < len(choice.tokens) for span in choice.spans)


def test_what_was_held_back_is_shown_at_the_end() -> None:
    choice = Choice(0, PlainParser(TOKENIZER), ["stop!"])

    assert choice.add(Piece(tokens_of("do not sto"), [Span(0, 1)], None)).text == "do not "
    assert choice.add(Piece(tokens_of("p" + END), [], "stop")).text == "stop"
    assert choice.text == "do not stop"


def test_an_answer_that_is_cut_keeps_what_was_shown() -> None:
    choice = Choice(0, PlainParser(TOKENIZER), ["stop!"])
    choice.add(Piece(tokens_of("go, sto"), [Span(0, 1)], None))
    choice.cut("cancelled")
    choice.cut("error")

    assert (choice.text, choice.finish_reason) == ("go, ", "cancelled")


class Scripted:
    """A parser that says these parts, one for each token, and the last at the end."""

    def __init__(self, *parts: AnswerPart) -> None:
        self._parts = list(parts)

    def push(self, _token_id: int) -> AnswerPart:
        return self._parts.pop(0)

    def flush(self) -> AnswerPart:
        return self._parts.pop(0)


def test_reasoning_and_calls_are_kept_apart_from_content() -> None:
    parser = Scripted(
        AnswerPart(reasoning="a sto"),
        AnswerPart(reasoning="p", content="s"),
        AnswerPart(calls=(CallPart(0, id="call_1", name="f"), CallPart(0, '{"x":'))),
        AnswerPart(calls=(CallPart(0, " 1}"), CallPart(1, id="call_2", name="g"))),
        AnswerPart(calls=(CallPart(1, "{}"),)),
    )
    choice = Choice(0, parser, ["stop"])
    first = choice.add(Piece(tokens_of("ab"), [Span(0, 1)], None))
    second = choice.add(Piece(tokens_of("cd"), [], "stop"))

    assert (first.text, first.reasoning, first.calls) == ("", "a stop", ())
    assert (choice.text, choice.reasoning, choice.finish_reason) == ("s", "a stop", "stop")
    assert choice.calls == [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    assert second.text == "s"
    assert "".join(part.arguments for part in second.calls) == '{"x": 1}{}'
    assert (choice.num_reasoning, choice.said) == (1, [(1, 2)])


def test_tokens_that_are_not_text_yet_belong_to_what_they_become() -> None:
    parser = Scripted(NOTHING, AnswerPart(reasoning="hm"), NOTHING, NOTHING, AnswerPart("é"), NOTHING, AnswerPart())
    choice = Choice(0, parser, [])
    choice.add(Piece(tokens_of("abcdef"), [Span(0, 1)], "stop"))

    assert (choice.num_reasoning, choice.said) == (2, [(2, 5)])


def test_a_stop_string_ends_an_answer_before_what_comes_after_it() -> None:
    parser = Scripted(AnswerPart("a sto"), AnswerPart("p b"), AnswerPart(calls=(CallPart(0, id="c", name="f"),)))
    choice = Choice(0, parser, ["stop"])
    choice.add(Piece(tokens_of("abc"), [Span(0, 1)], "stop"))

    assert (choice.text, choice.calls, len(choice.tokens), choice.finish_reason) == ("a ", [], 2, "stop")


def test_what_arrives_together_is_one_delta_and_nothing_changes_its_place() -> None:
    token, call = SampledToken(7, -0.5), CallPart(0, "{}", "id", "name")
    said = [Delta(0, text, (token,)) for text in ("a", "b")]
    thought = Delta(0, "", (token,), "hm")
    called = Delta(0, "", (token,), calls=(call,))

    assert merged([thought, *said]) == [Delta(0, "ab", (token,) * 3, "hm")]
    assert merged([*said, thought]) == [Delta(0, "ab", (token,) * 2), thought], (
        "reasoning stands before content in a chunk"
    )
    assert merged([said[0], called, said[1]]) == [said[0], called, said[1]]
    assert merged([said[0], Delta(1, "x", (token,)), said[1]]) == [said[0], Delta(1, "x", (token,)), said[1]]
