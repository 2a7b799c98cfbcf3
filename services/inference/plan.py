"""How a request becomes a plan: in one pass, before an engine sees anything of it.

    responder.py        the request, as its dialect read it (`requests.py`, `dialects/`), with the labels of its headers
    terms.py            which versions may answer, its purpose, its task, consent
    sessions/turns.py   the prompt: it goes on from its session's last call, or `template/` renders it
    answering.py        the limits: sampling, length, grammar; and how the answer is read
    arms.py             the arm, and with it the version
    RequestPlan         all of this, for `endpoint.py`, which answers it, and `recorder.py`, which logs it

Each step may refuse. Only the last one is remembered: the first call of a session that is drawn decides for all of it, so no call is
drawn that is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
import structlog

from contracts.assignments import LIVE, PROVIDER
from contracts.ids import new_completion_id
from contracts.keys import Caller, Owner
from contracts.records import Attempt
from contracts.sampling import Sampling
from contracts.tasks import Task
from runtime.template.chat_template import ChatTemplate
from services.inference.answering import decide_answering
from services.inference.arms import Arms, ChosenArm, DrawnArm
from services.inference.requests import ChatRequest
from services.inference.sessions.turns import Turn, Turns
from services.inference.terms import Terms, read_terms
from services.inference.tools.parser import AnswerParser


class RequestPlan(NamedTuple):
    """A request and every decision about it."""

    completion_id: str
    created_at: float
    policy: str
    tenant: str
    request: ChatRequest
    terms: Terms
    drawn: DrawnArm
    """Its version may be older than required; that is refused when the answer starts: a repeat under the same idempotency key still gets
    the answer that is kept."""
    sampling: Sampling
    prompt_ids: list[int]
    attempt: Attempt | None
    """Which attempt of a user's request it is, if the client counts them."""
    grammar: Mapping[str, Any] | None
    """What limits the tokens of the answer, as vLLM's `structured_outputs`; None: nothing."""
    new_parser: Callable[[], AnswerParser]
    """Makes the parser of a choice."""
    turn: Turn | None
    """Its place in its session; None without a session."""
    budget: str | None
    """The session whose budget pays for it; None: its key is not that of a session."""

    @property
    def owner(self) -> Owner:
        """To whom belongs what is kept of it."""
        return Owner(self.tenant, self.budget)

    def sampling_of(self, choice: int) -> Sampling:
        """How one choice is sampled: like the request, with a seed for each choice."""
        if (seed := self.sampling.seed) is None or choice == 0:
            return self.sampling
        # A hash, since with a sum choice 1 of seed 1 would equal choice 0 of seed 2.
        hashed = int.from_bytes(blake2b(f"{seed}:{choice}".encode(), digest_size=8).digest(), "little", signed=True)
        return msgspec.structs.replace(self.sampling, seed=hashed)

    def shortened(self, most: int) -> RequestPlan:
        """The plan with answers of at most so many tokens."""
        shorter = msgspec.structs.replace(self.sampling, max_tokens=min(self.sampling.max_tokens, most))
        return self._replace(sampling=shorter)

    def uncompared(self, *, passes: bool) -> RequestPlan:
        """The plan of a request that is compared with no other, since the arms do not get the like. `passes`: a provider can take it."""
        drawn = self.drawn._replace(draw=None)
        if drawn.arm.name == PROVIDER and not passes:
            drawn = DrawnArm(ChosenArm(LIVE, 1.0, self.policy), None, None)
        return self._replace(drawn=drawn)

    @property
    def grammar_param(self) -> str:
        """The field of the request from which the grammar was made."""
        return "tools" if self.sampling.constraint == "tool" else "response_format"

    @property
    def asking(self) -> dict[str, bool]:
        """As in `Terms`."""
        return self.terms.asking(self.completion_id)


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Plans the requests to one policy; see the module."""

    policy: str
    tasks: Mapping[str, Task]
    template: ChatTemplate
    turns: Turns
    arms: Arms

    async def plan(
        self, request: ChatRequest, caller: Caller, purpose: str | None, attempt: Attempt | None = None
    ) -> RequestPlan:
        """Decide everything about a request. `purpose`: as its header says. Raises what each of the steps raises."""
        template = self.template
        terms = read_terms(request, caller, purpose, self.policy, tasks=self.tasks, tokenizer=template.tokenizer)
        turn: Turn | None = None
        session_id = request.labels.get("session_id")
        if request.prompt is not None:
            prompt_ids, text = await asyncio.to_thread(template.encode_prompt, request.prompt)
            # For those who read the answer later.
            request = msgspec.structs.replace(request, messages=[{"role": "user", "content": text}])
        elif session_id and request.messages:
            task = terms.task.name
            turn = await self.turns.next(request, caller.tenant, session_id, logged=terms.logged, task=task)
            prompt_ids = turn.prompt_ids
        else:
            prompt_ids = await template.encode_chat(request)
        completion_id = new_completion_id(session_id, stored=terms.logged)
        decide = partial(decide_answering, request, terms, template, prompt_ids, completion_id)
        has_schemas = request.tools or request.response_format
        answering = await asyncio.to_thread(decide) if has_schemas else decide()
        drawn = await self.arms.draw(request, caller, terms, completion_id)
        version = terms.version if drawn.version is None else drawn.version
        structlog.contextvars.bind_contextvars(completion=completion_id, version=version)
        return RequestPlan(
            completion_id=completion_id,
            created_at=time.time(),
            policy=self.policy,
            tenant=caller.tenant,
            request=request,
            terms=terms,
            drawn=drawn,
            sampling=answering.sampling,
            prompt_ids=prompt_ids,
            attempt=attempt if terms.purpose == "user" else None,
            grammar=answering.grammar,
            new_parser=answering.new_parser,
            turn=turn,
            budget=caller.session,
        )
