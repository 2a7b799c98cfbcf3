"""Appends generations to the log, durably, before their response ends.

    record() ─▶ _waiting ─▶ _append(), one at a time ─▶ one thread ─▶ log
       ▲ waits for the append that contains its generations ──┘

In: the generations of finished or abandoned requests. Out: one append for all that wait. Waits for: the log. Requests that arrive
during an append share the next one, so that many requests share one fsync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import structlog

from contracts.errors import RecordTooLarge, Unavailable
from contracts.event_log import EventLog, Message
from contracts.packing import MAX_PACKED_BYTES, pack_experts, pack_support
from contracts.records import Generation, GenerationBody, pack_body, pack_floats, pack_ids
from contracts.sampling import ExpertShape
from contracts.topics import GENERATIONS
from engines.wire import RecordedExperts
from runtime.log.outbox import message
from runtime.log.spool import Spool
from runtime.metrics import CACHED_TOKENS, NOT_LOGGED, SAMPLED, TOKENS
from runtime.metrics import GENERATIONS as GENERATIONS_ENDED
from services.inference.answer import Choice
from services.inference.plan import RequestPlan

PROMPT_TOKENS, COMPLETION_TOKENS = TOKENS.labels("prompt"), TOKENS.labels("completion")
EXPLORES_FROM = 0.7
"""The temperature from which an answer counts as exploring."""
_log = structlog.get_logger(__name__)


class Recorder:
    """See the module. Belongs to one event loop. `num_lost`: generations that were served but could not be logged."""

    def __init__(self, event_log: EventLog | Spool) -> None:
        self.num_lost = 0
        self._event_log = event_log
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recorder")
        self._appending = asyncio.Lock()
        self._waiting: list[Message] = []
        self._next: asyncio.Task[frozenset[str]] | None = None
        self._left_behind: set[asyncio.Task[bool]] = set()

    async def record(self, generations: Sequence[Generation]) -> bool:
        """Append. True once they are durable; False if the log cannot take them: then they are lost, counted and logged as lost."""
        if not generations:
            return True
        self._waiting += [message(GENERATIONS, generation.key, generation) for generation in generations]
        if self._next is None:
            self._next = asyncio.create_task(self._append())
        try:
            refused = await asyncio.shield(self._next)
            num_lost = sum(generation.key in refused for generation in generations)
        except Unavailable as error:
            num_lost = len(generations)
            reason = error.message
            _log.warning("generations not logged", num=num_lost, lost=self.num_lost + num_lost, reason=reason)
        self.num_lost += num_lost
        NOT_LOGGED.inc(num_lost)
        return num_lost == 0

    def record_later(self, made: Awaitable[Sequence[Generation]]) -> None:
        """Append in the background, once they are made: the client has left."""
        task = asyncio.create_task(self._record(made))
        self._left_behind.add(task)
        task.add_done_callback(self._left_behind.discard)

    async def _record(self, made: Awaitable[Sequence[Generation]]) -> bool:
        return await self.record(await made)

    async def close(self) -> None:
        """Append what is waiting, then end the thread."""
        while self._left_behind:
            await asyncio.wait(self._left_behind)
        self._thread.shutdown()

    async def _append(self) -> frozenset[str]:
        async with self._appending:
            batch, self._waiting, self._next = self._waiting, [], None
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._write, batch)

    def _write(self, batch: Sequence[Message]) -> frozenset[str]:
        """Append. Returns the keys of generations that are too large for the log."""
        try:
            self._event_log.append(batch)
        except RecordTooLarge as error:
            if len(batch) > 1:  # the others of the same append must not be lost with it
                return frozenset().union(*(self._write([message]) for message in batch))
            _log.error("a generation is too large for the log", reason=error.message)
            return frozenset({batch[0].key})
        return frozenset()


def generation_of(plan: RequestPlan, choice: Choice, finished_at: float) -> Generation:
    """The record of a choice that has at least one token."""
    terms, arm, request = plan.terms, plan.drawn.arm, plan.request
    GENERATIONS_ENDED.labels(arm.name, terms.purpose, choice.finish_reason or "cancelled").inc()
    PROMPT_TOKENS.inc(len(plan.prompt_ids))
    COMPLETION_TOKENS.inc(len(choice.tokens))
    CACHED_TOKENS.inc(choice.num_cached)
    if terms.purpose == "user":
        heat = plan.sampling.temperature
        how = "greedy" if heat <= 0 else "exploring" if heat >= EXPLORES_FROM else "sharper"
        SAMPLED.labels(terms.task.name, how).inc()
    experts, expert_shape = experts_of_answer(choice.experts, len(plan.prompt_ids) + len(choice.tokens))
    body = GenerationBody(
        messages=request.messages,
        text=choice.text,
        prompt_ids=pack_ids(plan.prompt_ids),
        completion_ids=pack_ids([token.id for token in choice.tokens]),
        logprobs=pack_floats([token.logprob for token in choice.tokens]),
        metadata=request.labels,
        tools=request.offered_tools,
        tool_choice=request.tool_choice.as_openai() if request.tools else None,
        response_format=None if request.response_format is None else request.response_format.as_openai(),
        tool_calls=choice.calls,
        reasoning=choice.reasoning,
        experts=experts,
        expert_shape=expert_shape,
        support=pack_support([token.support for token in choice.tokens]),
    )
    is_raw = choice.system is not None and choice.system.raw_logprobs
    return Generation(
        completion_id=plan.completion_id,
        choice=choice.index,
        tenant=plan.tenant,
        policy=plan.policy,
        task=terms.task.name,
        task_hash=terms.task.hash,
        purpose=terms.purpose,
        arm=arm.name,
        arm_probability=arm.probability,
        draw=plan.drawn.draw,
        spans=tuple(choice.spans),
        sampling=msgspec.structs.replace(plan.sampling, raw_logprobs=True) if is_raw else plan.sampling,
        finish_reason=choice.finish_reason or "cancelled",
        created_at=plan.created_at,
        finished_at=finished_at,
        engine=choice.system.engine if choice.system else "",
        dtype=(choice.system.dtype if choice.system else None) or "",
        session_id=request.labels.get("session_id"),
        turn=plan.turn.place if plan.turn else None,
        join_key=request.labels.get("join_key"),
        ask_probability=terms.ask_probability,
        person=request.person,
        attempt=plan.attempt,
        num_choices=request.num_choices,
        body=pack_body(body),
    )


def failure_of(plan: RequestPlan, choice: Choice, finished_at: float) -> Generation:
    """The record of a choice whose arm was drawn and gave no token: it counts against the arm. No words, and no signal finds it."""
    silent = msgspec.structs.replace(plan.request, messages=[], metadata=None, tools=[], response_format=None)
    empty = plan._replace(request=silent, prompt_ids=[], attempt=None, turn=None)
    return msgspec.structs.replace(generation_of(empty, choice, finished_at), spans=(), ask_probability=0.0)


def experts_of_answer(recorded: RecordedExperts | None, num_tokens: int) -> tuple[bytes, ExpertShape | None]:
    """The packed experts of a prompt and its answer of so many tokens; none unless all were recorded, and few enough to be logged.

    Tokens after a stop string are not part of the answer, so the record may be longer.
    """
    if recorded is None or not 1 < num_tokens <= recorded.shape.num_tokens + 1:
        return b"", None
    num_bytes = len(recorded.ids) // recorded.shape.num_tokens * (num_tokens - 1)
    packed = pack_experts(recorded.ids[:num_bytes])
    if not num_bytes or len(packed) > MAX_PACKED_BYTES:
        return b"", None
    return packed, msgspec.structs.replace(recorded.shape, num_tokens=num_tokens - 1)
