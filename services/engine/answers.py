"""The shape of an answer: vLLM's, with the version of each token as soon as it is made, and what the engine is. Pure."""

from __future__ import annotations

import base64
from itertools import pairwise
from typing import Any

from contracts.sampling import Span
from services.engine.active_requests import ActiveRequest, TokenChunk
from services.engine.engine import Engine
from services.engine.sampling import GenerateRequest


class GeneratedAnswer:
    """Turns the chunks of one request into the bodies of a response, in order.

    `weight_versions` stands in every chunk that begins a span, which names only the new ones, and in the last one, which names all.
    `timings` and `system` are ours; the last chunk has them. `usage` stands in the first chunk too, with the `cached_tokens` of the prompt.
    """

    def __init__(self, engine: Engine, request: GenerateRequest, active: ActiveRequest) -> None:
        self._engine = engine
        self._request = request
        self._active = active
        self._spans: list[Span] = []
        self._num_made = 0
        self._num_cached = 0

    def part(self, chunk: TokenChunk) -> dict[str, Any]:
        """The body of one chunk."""
        self._num_made += len(chunk.token_ids)
        self._num_cached = self._num_cached if chunk.num_cached is None else chunk.num_cached
        self._spans += chunk.spans
        is_last = chunk.finish_reason is not None
        told = self._spans if is_last else chunk.spans
        choice: dict[str, Any] = {
            "index": 0,
            "token_ids": chunk.token_ids,
            "logprobs": {"content": _content(chunk)},
            "finish_reason": chunk.finish_reason,
        }
        if told:
            choice["weight_versions"] = weight_versions(told, self._num_made)
        if chunk.routed_experts:
            choice["routed_experts"] = base64.b64encode(chunk.routed_experts).decode()
        body: dict[str, Any] = {
            "request_id": self._request.request_id or self._active.request_id,
            "model": self._request.model,
            "choices": [choice],
        }
        if is_last or chunk.num_cached is not None:
            num_prompt = self._active.num_prompt
            body["usage"] = {
                "prompt_tokens": num_prompt,
                "completion_tokens": self._num_made,
                "total_tokens": num_prompt + self._num_made,
                "prompt_tokens_details": {"cached_tokens": self._num_cached},
            }
        if is_last:
            body["timings"] = self._active.timings()
            body["system"] = self._engine.system()
        return body


def weight_versions(spans: list[Span], num_tokens: int) -> list[dict[str, Any]]:
    """Consecutive spans in vLLM's shape: tokens [start, end) of the answer; the last one ends at `num_tokens` so far."""
    ends = [*(span.start for _, span in pairwise(spans)), num_tokens]
    return [
        {"version": f"v{span.version}", "start": span.start, "end": end} for span, end in zip(spans, ends, strict=True)
    ]


def _content(chunk: TokenChunk) -> list[dict[str, Any]]:
    top = chunk.top_logprobs or [[]] * len(chunk.token_ids)
    return [
        {
            "token_id": token_id,
            "logprob": logprob,
            "top_logprobs": [{"token_id": other, "logprob": value} for other, value in others],
        }
        for token_id, logprob, others in zip(chunk.token_ids, chunk.logprobs, top, strict=True)
    ]
