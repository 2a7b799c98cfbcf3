"""Requests of one arm that are open: how many it accepts, and how their tokens arrive, each with the version that made it.

Without a limit the queue would grow until all answers are late. So further requests are refused, with the time to try again.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from time import perf_counter
from typing import Literal, NamedTuple

import msgspec

from contracts.errors import EngineRestarted, MillraceError, Overloaded
from contracts.sampling import Span
from services.engine.prefixes import PrefixUse
from services.engine.sampler import SequenceSampling
from services.engine.sampling import GenerateRequest

BACKGROUND_SHARE = 0.5
"""The share of the bounds that rollouts, sentinels and shadows may use; the rest is for users."""
_TURNOVER = 0.1  # the share of open requests that must end before a retry is worthwhile
_LEAST_SECONDS, _MOST_SECONDS = 1, 30


class Bounds(NamedTuple):
    """The most that one arm may have open, running or waiting."""

    num_requests: int
    num_tokens: int
    """Tokens of prompts and of the longest possible answers."""


def admit(
    bounds: Bounds,
    open_tokens: Collection[int],
    num_tokens: int,
    ends: Sequence[float],
    now: float,
    *,
    background: bool,
) -> None:
    """Return if a request of `num_tokens`, of its prompt and longest possible answer, may be accepted; always if no other is open.

    `open_tokens`: the same for each open request. `ends`: when the last requests ended, oldest first, on any clock that tells `now` too.
    `background`: it is not a user's. Raises Overloaded, with the seconds after which to try again.
    """
    share = BACKGROUND_SHARE if background else 1.0
    most_requests, most_tokens = max(1, int(bounds.num_requests * share)), int(bounds.num_tokens * share)
    if not open_tokens or (len(open_tokens) < most_requests and sum(open_tokens) + num_tokens <= most_tokens):
        return
    seconds = retry_seconds(len(open_tokens), ends, now)
    raise Overloaded(
        f"the engine has {len(open_tokens)} requests with up to {sum(open_tokens)} tokens open, and takes {most_requests} with "
        f"{most_tokens}{' for requests that are not of users' if background else ''}; try again in {seconds} s",
        seconds,
    )


def retry_seconds(num_open: int, ends: Sequence[float], now: float) -> int:
    """Seconds until a tenth of the open requests will have ended, at the rate of the last ends; from 1 to 30."""
    if len(ends) < 2:  # noqa: PLR2004 a rate needs two
        return _LEAST_SECONDS
    pace = len(ends) / max(now - ends[0], 1e-3)
    return min(_MOST_SECONDS, max(_LEAST_SECONDS, math.ceil(num_open * _TURNOVER / pace)))


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens since the last chunk. Span starts count tokens of the whole answer."""

    token_ids: list[int]
    logprobs: list[float]
    spans: list[Span]
    finish_reason: Literal["stop", "length"] | None = None
    top_logprobs: list[list[tuple[int, float]]] = []
    """For each token, the ids and log-probs asked for: the sampled one first, then in order of rank; empty if none were asked for."""
    num_cached: int | None = None
    """In the first chunk: how many tokens of the prompt were not computed, because their keys and values were kept."""
    routed_experts: bytes = b""
    """The experts of every token of prompt and answer except the last, as an .npy file [T - 1, layers, k]; at the end, if recorded."""
    error: MillraceError | None = None
    """What ended the answer early."""


class ActiveRequest:
    """A request between its submission and its last token; `num_reserved`: the tokens of its prompt and of its longest answer.

    In: all tokens so far, after each step, on the generation thread (`advance`). Out: chunks, on the event loop that submitted
    the request (`chunks`); one per step if it streams, else one at the end.
    """

    def __init__(
        self,
        request_id: str,
        request: GenerateRequest,
        sampling: SequenceSampling,
        stops: frozenset[int],
        prefix: PrefixUse | None = None,
    ) -> None:
        self.request_id = request_id
        self.request = request
        self.num_prompt = len(request.token_ids)
        self.num_reserved = self.num_prompt + request.sampling_params.max_tokens
        self.loop = asyncio.get_running_loop()
        self.submitted_at = perf_counter()
        self.token_times: list[float] = []
        self.finished = False
        self.sampling = sampling
        self.stops = stops
        self.prefix = prefix
        self._spans: list[Span] = []
        self._num_sent = 0
        self._num_spans_sent = 0
        self.queue: asyncio.Queue[TokenChunk] = asyncio.Queue()

    def advance(
        self, token_ids: list[int], logprobs: list[float], *, finished: bool, version: int
    ) -> TokenChunk | None:
        """Take all ids [T] and log-probs [T] of the answer so far, the new ones by `version`. Returns the chunk to send, if any."""
        num_known = len(self.token_times)
        if len(token_ids) > num_known and (not self._spans or self._spans[-1].version != version):
            self._spans.append(Span(num_known, version))
        self.token_times.extend([perf_counter()] * (len(token_ids) - num_known))
        self.finished = finished
        if not (self.request.stream or finished):
            return None
        chunk = TokenChunk(
            token_ids=token_ids[self._num_sent :],
            logprobs=logprobs[self._num_sent :],
            spans=self._spans[self._num_spans_sent :],
            finish_reason=("stop" if token_ids[-1] in self.stops else "length") if finished else None,
            top_logprobs=self.sampling.tops[self._num_sent :],
            num_cached=None if self._num_sent else self.prefix.num_cached if self.prefix is not None else 0,
        )
        self._num_sent, self._num_spans_sent = len(token_ids), len(self._spans)
        return chunk

    def fail(self, error: MillraceError) -> TokenChunk:
        """End the answer with an error. Returns the chunk that reports it."""
        self.finished = True
        return TokenChunk(token_ids=[], logprobs=[], spans=[], error=error)

    def restarted(self, reason: str) -> TokenChunk:
        """The same, after the generation loop died."""
        text = f"the engine restarted and lost this request ({reason}); send it again"
        return self.fail(EngineRestarted(text, request_id=self.request_id))

    async def chunks(self) -> AsyncIterator[TokenChunk]:
        """The chunks of the answer, up to the one with a finish reason. Raises EngineRestarted (its tokens are lost), GrammarStuck."""
        while True:
            chunk = await self.queue.get()
            if chunk.error is not None:
                raise chunk.error
            yield chunk
            if chunk.finish_reason is not None:
                return

    def timings(self) -> dict[str, float]:
        """Seconds from submission to the first token and to now."""
        first = self.token_times[0] if self.token_times else perf_counter()
        return {"first_token_seconds": first - self.submitted_at, "seconds": perf_counter() - self.submitted_at}


def hand_over(chunks: list[tuple[ActiveRequest, TokenChunk]]) -> None:
    """Pass chunks to their readers, from any thread; each event loop is woken once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[ActiveRequest, TokenChunk]]] = defaultdict(list)
    for active, chunk in chunks:
        by_loop[active.loop].append((active, chunk))
    for loop, batch in by_loop.items():
        if not loop.is_closed():  # else its readers are gone; an error here would end the generation thread
            loop.call_soon_threadsafe(_put_all, batch)


def _put_all(batch: list[tuple[ActiveRequest, TokenChunk]]) -> None:
    for active, chunk in batch:
        active.queue.put_nowait(chunk)
