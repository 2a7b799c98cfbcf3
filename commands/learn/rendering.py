"""From a remark to token ids of the policy that learns, as its engine would have seen and sampled them.

An answer of this policy has its exact tokens in the log. All other text goes through the policy's own template and tokenizer, as the endpoint
does it. Nothing that people wrote becomes a control token.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from commands.learn.selection import Remark
from contracts.errors import ContextLengthExceeded, InvalidRequest, InvalidSettings
from contracts.records import unpack_ids
from pipelines.training.text.edits import AnswerTokenizer
from pipelines.training.text.samples import TextSample, token_weights
from runtime.template.chat_template import load_template

Ids = tuple[int, ...]


class NotRendered(Exception):
    """A remark that cannot become tokens; its text is the reason, as the report names it."""


class Renderer:
    """Of one base policy. `has_own_tokens`: answers in the log that no provider gave are of this policy."""

    def __init__(self, base: Path, most_tokens: int, *, has_own_tokens: bool) -> None:
        """`most_tokens`: of prompt and answer, beside the context. Raises InvalidSettings: the folder has no tokenizer or template."""
        self._template, answers = load_template(str(base)), AnswerTokenizer.of(base)
        if answers is None:
            raise InvalidSettings(
                f"{base} has no tokenizer.json or generation_config.json, so no text can become tokens"
            )
        self._answers, self._has_own_tokens = answers, has_own_tokens
        self._most = min(most_tokens, self._template.context)
        self._same: dict[int, int] = {}
        """Each token id as one object: those of a hundred thousand remarks take a quarter of the memory."""

    def samples_of(self, remark: Remark) -> list[TextSample]:
        """What is trained: of an edit a target and a pair. Raises NotRendered."""
        body = remark.body
        is_own = self._has_own_tokens and remark.record.provided is None and bool(body.prompt_ids)
        answer_ids = tuple(unpack_ids(body.completion_ids)) if is_own else ()
        prompt_ids = tuple(unpack_ids(body.prompt_ids)) if is_own else self._prompt_ids(remark)
        if body.tool_calls and (remark.kind == "edit" or not is_own):
            raise NotRendered("tool_call")
        if is_own and body.reasoning and remark.kind == "edit":
            raise NotRendered("reasoning")  # the answer's tokens begin with it, and those of the edit would not
        if remark.kind == "edit":
            chosen_ids, rejected_ids = (
                self._ids(remark.chosen, answer_ids),
                answer_ids or self._ids(remark.rejected or ""),
            )
        else:
            chosen_ids = answer_ids or self._ids(remark.chosen)
            rejected_ids = () if remark.rejected is None else self._ids(remark.rejected, answer_ids)
        if len(prompt_ids) + max(len(chosen_ids), len(rejected_ids)) > self._most:
            raise NotRendered("beyond_the_context")
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

    def _prompt_ids(self, remark: Remark) -> Ids:
        try:
            return tuple(self._template.encode(remark.body.messages, remark.body.tools))
        except InvalidRequest as error:
            is_long = isinstance(error, ContextLengthExceeded)
            raise NotRendered("beyond_the_context" if is_long else "template_refuses") from error

    def _lean(self, ids: Ids) -> Ids:
        return tuple(self._same.setdefault(each, each) for each in ids)

    def _ids(self, text: str, answer_ids: Ids = ()) -> Ids:
        ids, refused = self._answers.completion_ids(text, answer_ids)
        if refused:
            raise NotRendered(refused)
        return ids
