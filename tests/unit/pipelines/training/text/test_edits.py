"""From edits to tokens: as the endpoint renders them, and refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tokenizers import Tokenizer

from contracts.records import Experience, Streams
from pipelines.training.text.edits import NO_TOKENIZER, AnswerTokenizer, text_of
from pipelines.training.text.samples import KEPT
from runtime.template.chat_template import ChatTemplate
from tests.unit.pipelines.training.builders import experience, segment
from tests.worlds.paths import ROOT

BASES = [ROOT / "examples/reservations/base", ROOT / "examples/support/base"]
ALL = Streams(ce=1.0, pair=0.5, thumb=0.25)
BOOKING = '{"party": 4, "time": "19:00", "name": "Ana"}'


def tokenizer_of(base: Path = BASES[0]) -> AnswerTokenizer:
    found = AnswerTokenizer.of(base)
    assert found is not None
    return found


def an_answer(text: str, streams: Streams, *, prompt: tuple[int, ...] = (3, 9, 4), **changes: Any) -> Experience:
    ids, refused = tokenizer_of().completion_ids(text)
    assert not refused
    return experience(segment([*prompt], [*ids], [-1.0] * len(ids)), streams=streams, **changes)


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.parent.name)
@pytest.mark.parametrize("text", [BOOKING, "no", "Zoë", " two  spaces\nand a line "])
def test_an_edit_has_the_tokens_that_the_template_gives_it(base: Path, text: str) -> None:
    template, asked = ChatTemplate(base), {"role": "user", "content": "a table"}
    prompt = template.encode([asked])
    whole = template.encode([asked, {"role": "assistant", "content": text}], opens_answer=False)
    ids, refused = tokenizer_of(base).completion_ids(text)
    assert refused == ""
    assert whole[: len(prompt) + len(ids)] == [*prompt, *ids]


def test_an_edit_is_a_target_and_better_than_the_answer() -> None:
    item = an_answer(BOOKING.replace("4", "5"), replace(ALL, edit=BOOKING), weight=0.5, revision=2)
    target, pair = text_of(item, tokenizer_of(), 512).samples
    edited_ids, _ = tokenizer_of().completion_ids(BOOKING)
    assert (target.kind, target.key, target.revision, target.weight) == ("target", item.key, 2, 0.5)
    assert (pair.kind, pair.weight) == ("pair", 0.25)
    assert target.prompt_ids == pair.prompt_ids == (3, 9, 4)
    assert target.chosen_ids == pair.chosen_ids == edited_ids
    assert pair.rejected_ids is not None
    assert [weight for weight in target.token_weights if weight == 1.0] == [1.0]
    assert sum(one != other for one, other in zip(pair.chosen_ids, pair.rejected_ids, strict=True)) == 1
    only = replace(item, streams=Streams(pair=1.0, edit=BOOKING))
    assert [each.kind for each in text_of(only, tokenizer_of(), 512).samples] == ["pair"]


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (BOOKING, "edit_equals_answer"),
        ("a<|end|>b", "edit_with_control_tokens"),
        ("long " * 600, "edit_beyond_context"),
    ],
)
def test_an_edit_that_cannot_be_learned_is_refused_by_name(edit: str, reason: str) -> None:
    assert text_of(an_answer(BOOKING, replace(ALL, edit=edit)), tokenizer_of(), 512) == ((), reason)


def test_an_edit_without_tokens_of_its_own_is_refused_by_name(tmp_path: Path) -> None:
    item = an_answer(BOOKING, replace(ALL, edit="no"))
    assert AnswerTokenizer.of(tmp_path) is None
    assert text_of(item, None, 512).refused == NO_TOKENIZER
    tokenizer = Tokenizer.from_file(str(BASES[0] / "tokenizer.json"))
    assert text_of(item, AnswerTokenizer(tokenizer, []), 512).refused == "no_end_token"
    assert text_of(replace(item, streams=Streams(ce=1.0, refused="empty_edit")), None, 512).refused == "empty_edit"
    assert text_of(replace(item, streams=None), None, 512) == ((), "")


def test_an_edit_ends_as_its_answer_ended() -> None:
    """A policy may have several tokens that end an answer, and the engine drew one of them."""
    tokenizer = AnswerTokenizer(Tokenizer.from_file(str(BASES[0] / "tokenizer.json")), [1, 4])
    assert [tokenizer.completion_ids("no", answer)[0][-1] for answer in ([9, 4], [9, 1], [9, 8], [])] == [4, 1, 1, 1]


def test_an_edit_of_an_answer_with_marks_would_lose_them() -> None:
    [mark] = Tokenizer.from_file(str(BASES[0] / "tokenizer.json")).encode("<|end|>", add_special_tokens=False).ids
    assert tokenizer_of().completion_ids("no", [mark, 9, 1]) == ((), "edit_of_reasoning")


def test_a_list_of_end_tokens_is_read_from_the_base(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((BASES[0] / "tokenizer.json").read_bytes())
    for told, last in ((4, 4), ([4, 1], 4)):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": told}))
        assert tokenizer_of(tmp_path).completion_ids("no")[0][-1] == last


def test_an_answer_that_users_approved_is_a_target_where_its_reward_teaches_nothing() -> None:
    only = replace(ALL, rl=0.0, is_good=True)
    target, thumb = text_of(an_answer("no", only), None, 512).samples
    assert (target.kind, target.weight, set(target.token_weights), thumb.kind) == ("target", 1.0, {KEPT}, "thumb")
    assert target.chosen_ids == tokenizer_of().completion_ids("no")[0]
    for other in (replace(only, rl=1.0), replace(only, is_good=False)):
        assert [each.kind for each in text_of(an_answer("no", other), None, 512).samples] == ["thumb"]


def test_a_lone_thumb_is_about_the_answer_itself() -> None:
    item = an_answer("no", replace(ALL, is_good=False))
    (thumb,) = text_of(item, None, 512).samples
    assert (thumb.kind, thumb.is_good, thumb.weight) == ("thumb", False, 0.25)
    assert thumb.chosen_ids == tokenizer_of().completion_ids("no")[0]
    assert text_of(replace(item, streams=replace(ALL, thumb=0.0, is_good=False)), None, 512).samples == []
