"""The shapes of OpenAI's completions API, the one from before chats. Pure.

The answers to several prompts are numbered through. If there are several prompts, each answer has the `completion_id` and the `choice`
by which feedback refers to it; else these are the id of the response and the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

from engines.wire import SampledToken
from services.inference.answer import Choice, Delta
from services.inference.completion import Completion
from services.inference.plan import RequestPlan
from services.inference.replies import DataEvents, head, prompt_ids, token_ids, token_text, usage, usage_chunk

_KIND = "text_completion"


class PromptReplies(DataEvents):
    """The response to one or more prompts; see `Replies`."""

    def __init__(self, completion: Completion, tokenizer: Tokenizer) -> None:
        self._plans = completion.plans
        self._choices = completion.choices
        self._plan_of = completion.plan_of
        self._tokenizer = tokenizer
        self._num_characters = [0] * len(self._choices)
        self._opened = set[int]()

    def body(self) -> dict[str, Any]:
        """See `Replies`."""
        shown = [
            {
                **self._choice(position, choice.text, choice.tokens),
                **prompt_ids(self._plan_of[position]),
                "finish_reason": choice.finish_reason,
            }
            for position, choice in enumerate(self._choices)
        ]
        return {
            **head(self._plans, _KIND, self._choices),
            "sampling": self._plans[0].sampling.in_full,
            "choices": shown,
            "usage": usage(self._plans, self._choices),
        }

    def chunks(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """See `Replies`."""
        position, plan = delta.choice, self._plan_of[delta.choice]
        opens = position not in self._opened
        if not (opens or delta.text or plan.request.logprobs or plan.request.return_token_ids):
            return
        self._opened.add(position)
        choice = self._choice(position, delta.text, delta.tokens)
        if not opens:
            yield self._chunk(position, choice)
            return
        chunk = self._chunk(position, choice | prompt_ids(plan))
        yield {**chunk, "sampling": plan.sampling_of(self._choices[position].index).in_full}

    def closing(self) -> list[dict[str, Any]]:
        """See `Replies`."""
        chunks = [
            self._chunk(position, {**self._choice(position, "", ()), "finish_reason": choice.finish_reason})
            for position, choice in enumerate(self._choices)
        ]
        if self._plans[0].request.includes_usage:
            chunks.append(usage_chunk(self._plans, _KIND, self._choices))
        return chunks

    def _chunk(self, position: int, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**head(self._plans, _KIND, [self._choices[position]]), "choices": [choice]}
        if self._plans[0].request.includes_usage:
            chunk["usage"] = None
        return chunk

    def _choice(self, position: int, text: str, tokens: Sequence[SampledToken]) -> dict[str, Any]:
        plan, choice = self._plan_of[position], self._choices[position]
        logprobs = self._logprobs(position, plan, tokens) if tokens else None
        shown = {"index": position, "text": text, "logprobs": logprobs, "finish_reason": None}
        return shown | token_ids(plan, tokens) | self._address(plan, choice)

    def _address(self, plan: RequestPlan, choice: Choice) -> dict[str, Any]:
        if len(self._plans) == 1:
            return {}
        return {"completion_id": plan.completion_id, "choice": choice.index}

    def _logprobs(self, position: int, plan: RequestPlan, tokens: Sequence[SampledToken]) -> dict[str, Any] | None:
        if not plan.request.logprobs:
            return None
        texts = [token_text(token.id, self._tokenizer) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._num_characters[position])
            self._num_characters[position] += len(text)
        top = [self._top(token) for token in tokens] if plan.request.top_logprobs else None
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def _top(self, token: SampledToken) -> dict[str, float]:
        """By text, the likeliest first; the sampled token is always there."""
        found: dict[str, float] = {}
        for token_id, logprob in (*token.top, (token.id, token.logprob)):
            found.setdefault(token_text(token_id, self._tokenizer), logprob)
        return found
