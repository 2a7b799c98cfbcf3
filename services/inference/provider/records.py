"""The records of an answer that a provider gave: its text, and no tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from contracts.assignments import PROVIDER
from contracts.keys import Caller
from contracts.record_checks import MAX_ID, MAX_INT32
from contracts.records import Attempt, Generation, GenerationBody, Provided, pack_body
from contracts.sampling import Sampling
from runtime.metrics import GENERATIONS as GENERATIONS_ENDED
from services.inference.arms import DrawnArm
from services.inference.provider.dialect import Dialect, PassedRequest, Told, ToldChoice
from services.inference.recorder import COMPLETION_TOKENS, PROMPT_TOKENS
from services.inference.terms import Terms
from services.provider import ProviderSettings


class PassedCall(NamedTuple):
    """A request and every decision about it."""

    completion_id: str
    created_at: float
    policy: str
    caller: Caller
    terms: Terms
    dialect: Dialect
    sent: PassedRequest
    attempt: Attempt | None
    headers: Mapping[str, str]
    drawn: DrawnArm | None = None
    """How the arm was drawn, in a home with versions of its own; None: it was not."""

    @property
    def is_compared(self) -> bool:
        """Whether other arms could have been drawn."""
        return self.drawn is not None and self.drawn.draw is not None

    @property
    def beside(self) -> dict[str, Any]:
        """What replies say beside the provider's fields, and in place of its own id of the response before."""
        before = {} if self.sent.previous is None else {"previous_response_id": self.sent.previous}
        return {**before, **self.terms.asking(self.completion_id)}


def records_of(call: PassedCall, told: Told, provider: ProviderSettings, finished_at: float) -> list[Generation]:
    """One record for each choice of which something was told. The first one carries tokens and cost of all."""
    if not call.terms.logged:
        return []
    PROMPT_TOKENS.inc(told.prompt_tokens or 0)
    COMPLETION_TOKENS.inc(told.completion_tokens or 0)
    found = [(index, choice) for index, choice in sorted(told.choices.items()) if not choice.is_empty]
    return [
        _record(call, index, choice, _provided(call, told, provider, is_first=place == 0), finished_at)
        for place, (index, choice) in enumerate(found)
    ]


def _provided(call: PassedCall, told: Told, provider: ProviderSettings, *, is_first: bool) -> Provided:
    model = told.model.replace("\0", "")[:MAX_ID] or provider.model
    partial = call.sent.is_partial
    about = Provided(origin=provider.origin, model=model, may_train=provider.may_train, is_partial=partial)
    if not is_first:
        return about
    prompt, completion = told.prompt_tokens, told.completion_tokens
    cost = provider.cost_of(prompt, completion)
    return msgspec.structs.replace(about, prompt_tokens=prompt, completion_tokens=completion, cost=cost)


def _record(call: PassedCall, index: int, choice: ToldChoice, provided: Provided, finished_at: float) -> Generation:
    request, terms = call.sent.request, call.terms
    reason = choice.finish_reason or "cancelled"
    GENERATIONS_ENDED.labels(PROVIDER, terms.purpose, reason).inc()
    is_silent = call.is_compared and choice.is_silent
    if is_silent:  # it counts against the arm: no words, and no signal finds it
        request = msgspec.structs.replace(request, messages=[], metadata=None, tools=[])
    drawn = call.drawn
    body = GenerationBody(
        messages=request.messages,
        text=choice.text,
        prompt_ids=b"",
        completion_ids=b"",
        logprobs=b"",
        metadata=request.labels,
        tools=request.tools,
        tool_choice=call.sent.tool_choice,
        response_format=call.sent.response_format,
        tool_calls=[choice.calls[place] for place in sorted(choice.calls)],
        reasoning=choice.reasoning,
    )
    heat, top_p = request.temperature, request.top_p
    return Generation(
        completion_id=call.completion_id,
        choice=index,
        tenant=call.caller.tenant,
        policy=call.policy,
        task=terms.task.name,
        task_hash=terms.task.hash,
        purpose=terms.purpose,
        arm=PROVIDER,
        arm_probability=drawn.arm.probability if drawn else 1.0,
        draw=drawn.draw if drawn else None,
        spans=(),
        sampling=Sampling(
            temperature=1.0 if heat is None else heat,
            top_p=1.0 if top_p is None else top_p,
            max_tokens=min(max(request.longest or 0, 0), MAX_INT32),  # some providers take -1: no limit
        ),
        finish_reason=reason,
        created_at=call.created_at,
        finished_at=finished_at,
        engine="",
        dtype="",
        session_id=request.labels.get("session_id"),
        join_key=request.labels.get("join_key"),
        ask_probability=0.0 if is_silent else terms.ask_probability,
        person=request.person,
        attempt=None if is_silent else call.attempt,
        num_choices=request.num_choices,
        provided=provided,
        body=pack_body(body),
    )
