"""From a remark to what is trained. An answer of this policy has its exact tokens in the log, all other text is rendered."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from commands.learn.selection import Remark
from contracts.errors import InvalidSettings
from contracts.records import unpack_ids
from pipelines.training.text.edits import AnswerTokenizer
from pipelines.training.text.rendering import BEYOND_CONTEXT, Ids, NotRendered, TextRenderer
from pipelines.training.text.samples import TextSample, token_weights
from runtime.template.chat_template import load_template


class Renderer:
    """Of one base policy. `has_own_tokens`: answers in the log that no provider gave are of this policy."""

    def __init__(self, base: Path, most_tokens: int, *, has_own_tokens: bool) -> None:
        """`most_tokens`: of prompt and answer, beside the context. Raises InvalidSettings: the folder has no tokenizer or template."""
        template, answers = load_template(str(base)), AnswerTokenizer.of(base)
        if answers is None:
            raise InvalidSettings(
                f"{base} has no tokenizer.json or generation_config.json, so no text can become tokens"
            )
        self._texts, self._has_own_tokens = TextRenderer(template, answers), has_own_tokens
        self._most = min(most_tokens, template.context)
        self._same: dict[int, int] = {}
        """Each token id as one object: those of a hundred thousand remarks take a quarter of the memory."""

    def samples_of(self, remark: Remark) -> list[TextSample]:
        """What is trained: of an edit a target and a pair. Raises NotRendered."""
        body = remark.body
        is_own = self._has_own_tokens and remark.record.provided is None and bool(body.prompt_ids)
        answer_ids = tuple(unpack_ids(body.completion_ids)) if is_own else ()
        prompt_ids = tuple(unpack_ids(body.prompt_ids)) if is_own else self._texts.prompt_ids(body)
        if body.tool_calls and (remark.kind == "edit" or not is_own):
            raise NotRendered("tool_call")
        if is_own and body.reasoning and remark.kind == "edit":
            raise NotRendered("reasoning")  # the answer's tokens begin with it, and those of the edit would not
        ids = self._texts.completion_ids
        if remark.kind == "edit":
            chosen_ids, rejected_ids = ids(remark.chosen, answer_ids), answer_ids or ids(remark.rejected or "")
        else:
            chosen_ids = answer_ids or ids(remark.chosen)
            rejected_ids = () if remark.rejected is None else ids(remark.rejected, answer_ids)
        if len(prompt_ids) + max(len(chosen_ids), len(rejected_ids)) > self._most:
            raise NotRendered(BEYOND_CONTEXT)
        if chosen_ids == rejected_ids:
            raise NotRendered("edit_is_the_answer")
        make = partial(
            TextSample,
            key=remark.record.key,
            revision=remark.revision,
            prompt_ids=self._lean(prompt_ids),
            chosen_ids=self._lean(chosen_ids),
            weight=remark.weight,
        )
        if remark.kind == "thumb":
            return [make(kind="thumb", is_good=remark.is_good)]
        weights = token_weights(rejected_ids, chosen_ids) if remark.kind == "edit" else ()
        wanted = {"accepted": ("target",), "pair": ("pair",)}.get(remark.kind, ("target", "pair"))
        samples = (make(kind="target", token_weights=weights), make(kind="pair", rejected_ids=self._lean(rejected_ids)))
        return [sample for sample in samples if sample.kind in wanted]

    def _lean(self, ids: Ids) -> Ids:
        return tuple(self._same.setdefault(each, each) for each in ids)
