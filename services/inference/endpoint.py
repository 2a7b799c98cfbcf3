"""Turns a chat request into a response, whole or streamed.

    routes.py ─▶ plan() ─▶ RequestPlan ─▶ answer() or stream()
                                              │ starts
                                              ▼
         engine ──pieces──▶ Completion: one task per choice ──▶ _new (a list) ──▶ stream(): events for the client
           ▲                  │        └─▶ answer() waits for all choices
           │ cancels          │ generations, when all choices have ended
         ClientPresence       ▼
         (client left)      Recorder._waiting ──▶ one thread appends for all that wait ──▶ log, durable

Who waits for whom: the tasks of a completion wait for the engine. `stream` waits for the list, which its completion fills;
the list has no bound, since an answer has at most `max_tokens` deltas. The end of a response (the body, or the last event) waits for
the recorder. The recorder waits only for the log.

In: requests that were read and checked. Out: bodies and events. Waits for: the first token, so that a refusal of the engine
still has its own status code; then the rest, and the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import structlog
from fastapi import Request, Response

from contracts.arms import logged_draw
from contracts.ids import new_completion_id
from contracts.keys import Caller
from contracts.records import Attempt
from contracts.tasks import Task
from services.http import CLIENT_LEFT, reply
from services.inference.answering import decide_answering
from services.inference.arms import Assignments, choose_arm, has_draw, pinned_version, refuse_revoked, served_arms
from services.inference.completion import Completion
from services.inference.engine.pool import EnginePool
from services.inference.parts import PlainParser
from services.inference.plan import (
    RequestPlan,
    cache_scope_of,
    check_token_ids,
    decide_purpose,
    decide_refusal,
    decide_sampling,
    explored,
    find_task,
    may_log,
)
from services.inference.prompts import Prompt, encode_prompt, with_text
from services.inference.recorder import Recorder
from services.inference.replies import ChatReplies, MakeReplies
from services.inference.requests import ChatRequest
from services.inference.sessions.budgets import SessionBudgets
from services.inference.sessions.turns import Turn, Turns
from services.inference.sessions.units import SessionUnits
from services.inference.streams import ClientPresence, CompletionStream, completion_events
from services.inference.template import ChatTemplate
from services.inference.versions import version_requirement

_MANY_LISTED = 1000
"""Tokens with their log-probs; a thread costs as much as a few hundred."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """What all requests share; see the module."""

    policy: str
    tasks: Mapping[str, Task]
    template: ChatTemplate
    assignments: Assignments
    engine: EnginePool
    recorder: Recorder
    turns: Turns
    units: SessionUnits
    budgets: SessionBudgets

    async def plan(
        self, request: ChatRequest, caller: Caller, purpose_header: str | None, attempt: Attempt | None = None
    ) -> RequestPlan:
        """Decide everything about a chat. Raises what each of the decisions raises."""
        return await self._plan(
            request,
            caller,
            purpose_header,
            attempt,
            lambda logged, task: self._turn(request, caller.tenant, logged=logged, task=task),
        )

    async def plan_prompt(
        self, prompt: Prompt, caller: Caller, purpose_header: str | None, attempt: Attempt | None = None
    ) -> RequestPlan:
        """Like `plan`, for a prompt that is no chat."""
        plan = await self._plan(
            prompt.request, caller, purpose_header, attempt, lambda _logged, _task: self._encode_prompt(prompt)
        )
        request = (
            prompt.request
            if prompt.ids is None
            else await asyncio.to_thread(with_text, prompt, self.template.tokenizer)
        )
        return plan._replace(request=request, new_parser=None)

    async def _plan(
        self,
        request: ChatRequest,
        caller: Caller,
        purpose_header: str | None,
        attempt: Attempt | None,
        encode: Callable[[bool, str], Awaitable[list[int] | Turn]],
    ) -> RequestPlan:
        version = pinned_version(request.model, self.policy)
        requirement = version_requirement(request.labels, version)
        version = requirement.exact if version is None else version
        purpose = decide_purpose(purpose_header, caller)
        check_token_ids(request, self.template.tokenizer)
        task = find_task(self.tasks, request)
        logged = may_log(request, task, purpose)
        encoded = await encode(logged, task.name)
        turn = encoded if isinstance(encoded, Turn) else None
        prompt_ids = encoded.prompt_ids if isinstance(encoded, Turn) else encoded
        template = self.template
        sampling = decide_sampling(request, task.sampling, purpose, len(prompt_ids), template.context)
        decide = partial(
            decide_answering, request, template.family, template.tokenizer, prompt_ids, sampling.max_tokens
        )
        has_schemas = request.tools or request.response_format
        answering = await asyncio.to_thread(decide) if has_schemas else decide()
        if answering.constraint:
            sampling = msgspec.structs.replace(sampling, constraint=answering.constraint)
        session_id = request.labels.get("session_id")
        completion_id = new_completion_id(session_id, stored=logged)
        arms = await self.assignments.held()
        refuse_revoked(self.policy, version, self.assignments.revoked)
        unit = None
        if purpose == "user" and version is None and requirement.minimum is None and has_draw(arms):
            unit = await self.units.unit_of(request, caller.tenant, completion_id, logged=logged)
        served = served_arms(arms, await self.engine.slots(), self.assignments.learned)
        arm = choose_arm(
            arms,
            self.policy,
            unit=unit.name if unit else None,
            secret=self.assignments.secret,
            version=version,
            minimum=requirement.minimum,
            served=served,
        )
        held = arms.get(arm.name)
        structlog.contextvars.bind_contextvars(completion=completion_id, version=held.version if held else version)
        return RequestPlan(
            completion_id=completion_id,
            created_at=time.time(),
            policy=self.policy,
            tenant=caller.tenant,
            request=request,
            task=task,
            purpose=purpose,
            arm=arm,
            sampling=explored(sampling, task.sampling, purpose, completion_id),
            prompt_ids=prompt_ids,
            logged=logged,
            requirement=requirement,
            refusal=decide_refusal(requirement, held.version if held else None),
            draw=None if unit is None else logged_draw(arms, arm.name, unit, served, api_key=caller.key_id),
            attempt=attempt if purpose == "user" else None,
            grammar=answering.grammar,
            new_parser=answering.new_parser,
            turn=turn,
            cache_scope=cache_scope_of(caller, purpose),
            budget=caller.session,
        )

    async def answer(
        self, plans: Sequence[RequestPlan], client: Request, replies: MakeReplies = ChatReplies
    ) -> Response:
        """The whole answer to one or more prompts, once it is durable."""
        completion, presence = await self._start(plans), ClientPresence(client)
        logged: bool | None = None
        try:
            with presence:
                logged = await completion.finish()
        finally:
            presence.end()
            completion.abandon()
        if logged is None:
            return Response(status_code=CLIENT_LEFT)
        made = replies(completion, self.template.tokenizer)
        body = await asyncio.to_thread(made.body) if _is_long(completion) else made.body()
        await made.keep()
        return reply(body, headers=_headers(plans) | ({} if logged else {"x-millrace-logged": "false"}))

    async def stream(
        self, plans: Sequence[RequestPlan], client: Request, replies: MakeReplies = ChatReplies
    ) -> Response:
        """The answer as it is made. The response begins with the first token."""
        completion, presence = await self._start(plans), ClientPresence(client)
        deltas = completion.deltas()
        response: Response | None = None
        try:
            with presence:
                first = await anext(deltas)
                made = replies(completion, self.template.tokenizer)
                events = completion_events(completion, first, deltas, made)
                response = CompletionStream(completion, events, _headers(plans), presence)
            return response or Response(status_code=CLIENT_LEFT)
        finally:
            if response is None:
                presence.end()
                completion.abandon()

    async def models(self) -> list[str]:
        """The policy, and the versions of it that can be asked for now."""
        await self.assignments.held()
        revoked = {f"{self.policy}@v{version}" for version in self.assignments.revoked}
        return [name for name in await self.engine.models() if name not in revoked]

    async def encode(self, request: ChatRequest, *, opens_answer: bool = True) -> list[int]:
        """The prompt of a chat, without its session. Raises what `ChatTemplate.encode` raises, and UnknownModel."""
        pinned_version(request.model, self.policy)
        # A thread costs more than encoding a short prompt. A long prompt would delay all other requests.
        options = self.template.options_of(request.template_variables, request.reasoning_effort)
        encode = partial(
            self.template.encode, request.messages, request.offered_tools, options, opens_answer=opens_answer
        )
        return encode() if request.is_short else await asyncio.to_thread(encode)

    async def _turn(self, request: ChatRequest, tenant: str, *, logged: bool, task: str) -> list[int] | Turn:
        if not ((session_id := request.labels.get("session_id")) and request.messages):
            return await self.encode(request)
        self.template.check_length(request.messages)
        options = self.template.options_of(request.template_variables, request.reasoning_effort)
        return await self.turns.next(request, tenant, session_id, options, logged=logged, task=task)

    async def _encode_prompt(self, prompt: Prompt) -> list[int]:
        template = self.template
        return await asyncio.to_thread(
            encode_prompt, prompt, template.tokenizer, template.context, template.most_characters
        )

    async def _start(self, plans: Sequence[RequestPlan]) -> Completion:
        for plan in plans:
            if plan.refusal is not None:
                raise plan.refusal
        left = await self.budgets.reserve(plans[0].budget)
        if left is not None:
            most = max(1, left // sum(plan.request.num_choices for plan in plans))
            plans = [plan.shortened(most) for plan in plans]
        new_parser = plans[0].new_parser or partial(PlainParser, self.template.tokenizer)
        return Completion(plans, self.engine, self.recorder, new_parser, self.turns, budgets=self.budgets)


def _is_long(completion: Completion) -> bool:
    """Whether an answer lists so many tokens that it is put together on another thread."""
    request = completion.plan.request
    each = 1 + (request.top_logprobs or 0) if request.logprobs else int(bool(request.return_token_ids))
    return each * sum(len(choice.tokens) for choice in completion.choices) > _MANY_LISTED


def _headers(plans: Sequence[RequestPlan]) -> dict[str, str]:
    return {"x-request-id": plans[0].completion_id}
