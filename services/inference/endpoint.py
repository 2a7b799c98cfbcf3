"""How a chat request becomes a response, whole or streamed.

Flows in: requests that were read and checked. Flows out: bodies and events. Waits for: the first token, so that a
refusal still has its own status; then for the rest, and for the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import structlog
from fastapi import Request, Response

from contracts.ids import new_completion_id
from contracts.keys import Caller
from contracts.records import Attempt
from contracts.tasks import Task
from services.http import CLIENT_LEFT, reply
from services.inference import replies
from services.inference.arms import Assignments, choose_arm, draw_of, pinned_version
from services.inference.completion import Completion
from services.inference.engine.client import EngineClient
from services.inference.plan import RequestPlan, decide_purpose, decide_refusal, decide_sampling, find_task, may_log
from services.inference.recorder import Recorder
from services.inference.requests import ChatRequest
from services.inference.streams import ClientPresence, CompletionStream, completion_events
from services.inference.template import ChatTemplate
from services.inference.versions import version_requirement


class Endpoint:
    """Everything that requests share."""

    def __init__(
        self,
        *,
        policy: str,
        tasks: Mapping[str, Task],
        template: ChatTemplate,
        assignments: Assignments,
        engine: EngineClient,
        recorder: Recorder,
    ) -> None:
        self._policy = policy
        self._tasks = tasks
        self._template = template
        self._assignments = assignments
        self._engine = engine
        self._recorder = recorder

    async def plan(
        self, request: ChatRequest, caller: Caller, purpose_header: str | None, attempt: Attempt | None = None
    ) -> RequestPlan:
        """Decide everything about a request; see the errors of each decision."""
        version = pinned_version(request.model, self._policy)
        requirement = version_requirement(request.labels, version)
        version = requirement.exact if version is None else version
        purpose = decide_purpose(purpose_header, caller)
        task = find_task(self._tasks, request)
        prompt_ids = await self._encode(request)
        sampling = decide_sampling(request, task.sampling, purpose, len(prompt_ids), self._template.context)
        session_id = request.labels.get("session_id")
        arms = await self._assignments.held()
        arm = choose_arm(arms, self._policy, version, draw_of(session_id), requirement.minimum)
        logged = may_log(request, task, purpose)
        completion_id = new_completion_id(session_id, stored=logged)
        held = arms.get(arm.name)
        structlog.contextvars.bind_contextvars(completion=completion_id, version=held.version if held else version)
        return RequestPlan(
            completion_id=completion_id,
            created_at=time.time(),
            policy=self._policy,
            model=request.model,
            tenant=caller.tenant,
            task=task,
            purpose=purpose,
            arm=arm,
            sampling=sampling,
            prompt_ids=prompt_ids,
            messages=request.messages,
            metadata=request.labels,
            stops=request.stops,
            num_choices=request.num_choices,
            person=request.safety_identifier or request.user,
            logged=logged,
            logprobs=bool(request.logprobs),
            include_usage=request.stream_options is not None and bool(request.stream_options.include_usage),
            requirement=requirement,
            refusal=decide_refusal(requirement, held.version if held else None),
            attempt=attempt if purpose == "user" else None,
        )

    async def answer(self, plan: RequestPlan, client: Request) -> Response:
        """The whole answer, once it is durable."""
        completion, presence = self._start(plan), ClientPresence(client)
        logged: bool | None = None
        try:
            with presence:
                logged = await completion.finish()
        finally:
            presence.end()
            completion.abandon()
        if logged is None:
            return Response(status_code=CLIENT_LEFT)
        body = replies.completion_body(plan, completion.choices, self._template.tokenizer)
        return reply(body, headers=_headers(plan) | ({} if logged else {"x-millrace-logged": "false"}))

    async def stream(self, plan: RequestPlan, client: Request) -> Response:
        """The answer as it is made. The response begins with the first token."""
        completion, presence = self._start(plan), ClientPresence(client)
        deltas = completion.deltas()
        response: Response | None = None
        try:
            with presence:
                first = await anext(deltas)
                events = completion_events(completion, first, deltas, self._template.tokenizer)
                response = CompletionStream(completion, events, _headers(plan), presence)
            return response or Response(status_code=CLIENT_LEFT)
        finally:
            if response is None:
                presence.end()
                completion.abandon()

    async def models(self) -> list[str]:
        """The policy, and the versions of it that can be asked for now."""
        held = await self._engine.models()
        return [self._policy, *(name for name in held if name.startswith(f"{self._policy}@v"))]

    async def _encode(self, request: ChatRequest) -> list[int]:
        # A thread costs more than a short prompt does, and a long prompt would keep everybody else waiting.
        if request.is_short:
            return self._template.encode(request.messages)
        return await asyncio.to_thread(self._template.encode, request.messages)

    def _start(self, plan: RequestPlan) -> Completion:
        if plan.refusal is not None:
            raise plan.refusal
        return Completion(plan, self._template.tokenizer, self._engine, self._recorder)


def _headers(plan: RequestPlan) -> dict[str, str]:
    return {"x-request-id": plan.completion_id}
