"""Everything that is decided about a request before the engine sees it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, get_args

import msgspec

from contracts.draws import is_asked
from contracts.errors import ContextLengthExceeded, InvalidRequest, VersionNotServed
from contracts.keys import Caller
from contracts.records import Attempt, Purpose, Sampling
from contracts.tasks import SamplingRule, Task
from services.inference.arms import ChosenArm
from services.inference.requests import ChatRequest
from services.inference.versions import VersionRequirement


class RequestPlan(NamedTuple):
    """One request, decided."""

    completion_id: str
    created_at: float
    policy: str
    model: str
    """As the caller named it."""
    tenant: str
    task: Task
    purpose: Purpose
    arm: ChosenArm
    sampling: Sampling
    prompt_ids: list[int]
    messages: list[dict[str, Any]]
    metadata: dict[str, str]
    stops: tuple[str, ...]
    num_choices: int
    person: str | None
    logged: bool
    """False: consent forbids to keep it."""
    logprobs: bool
    include_usage: bool
    requirement: VersionRequirement
    refusal: VersionNotServed | None
    """Why it cannot be answered now. Whoever has its answer already, as a repeat, never hears of it."""
    attempt: Attempt | None = None
    """Which try of a user's request it is, if the client counts them."""

    @property
    def session_id(self) -> str | None:
        """The session that the caller named."""
        return self.metadata.get("session_id")

    def sampling_of(self, choice: int) -> Sampling:
        """How one choice is sampled: as the request says, with a seed of its own."""
        seed = self.sampling.seed
        if seed is None or choice == 0:
            return self.sampling
        return msgspec.structs.replace(self.sampling, seed=_seed_of(seed, choice))

    @property
    def ask_probability(self) -> float:
        """With which the app is told to ask its user; 0 where nobody is asked: no user, or nothing that may be kept."""
        rule = self.task.asking
        return rule.probability if rule is not None and self.purpose == "user" and self.logged else 0.0

    @property
    def ask_feedback(self) -> bool | None:
        """Whether the app should ask its user; None if the task says nothing of asking."""
        return None if self.task.asking is None else is_asked(self.completion_id, self.ask_probability)


def find_task(tasks: Mapping[str, Task], request: ChatRequest) -> Task:
    """The task of `metadata.task`, else the first.

    Raises:
        InvalidRequest: no such task.
    """
    name = request.labels.get("task")
    if name is None:
        return next(iter(tasks.values()))
    if name not in tasks:
        raise InvalidRequest(f"no task is called {name!r}; there are {sorted(tasks)}", param="metadata.task")
    return tasks[name]


def decide_refusal(requirement: VersionRequirement, assigned: int | None) -> VersionNotServed | None:
    """Refuse a minimum at once where the chosen arm is assigned an older version; None: only the tokens will tell.

    An exact version is left to the engine, which may hold what was assigned a moment ago, and refuses at once too.
    """
    if requirement.minimum is None or assigned is None or requirement.is_met_by(assigned):
        return None
    return requirement.refusal(f"v{assigned} is served")


def decide_purpose(header: str | None, caller: Caller) -> Purpose:
    """What a request is for. Only operators may say anything but `user`.

    Raises:
        InvalidRequest: no such purpose.
        Forbidden: not an operator's key.
    """
    for purpose in get_args(Purpose):
        if purpose == (header or "user"):
            if purpose != "user":
                caller.require_operator()
            return purpose  # type: ignore[no-any-return] # get_args is untyped
    raise InvalidRequest(f"x-millrace-purpose is one of {', '.join(get_args(Purpose))}, not {header!r}")


def decide_sampling(
    request: ChatRequest, rule: SamplingRule, purpose: Purpose, num_prompt: int, context: int
) -> Sampling:
    """How answers are sampled: as the task says where it owns the rule and a user asks, else as the caller does.

    A task that owns the rule owns the chance too: a user's seed is left out, or an app that always sends the same one
    would get the same answer to a prompt again and again, and nothing would be explored. The answer says what was used.

    A shorter answer than the task's is served to anybody. An answer may be cut to what the context leaves, unless a
    caller who owns the rule asked for a length: then it is refused.

    Raises:
        ContextLengthExceeded: the prompt, or the length asked for with it, does not fit.
    """
    room = context - num_prompt
    if room < 1:
        raise ContextLengthExceeded(
            f"the prompt has {num_prompt} tokens; this policy's context is {context}, answer included", param="messages"
        )
    if rule.owner == "task" and purpose == "user":
        longest = rule.max_tokens if request.longest is None else min(rule.max_tokens, request.longest)
        return Sampling(temperature=rule.temperature, top_p=rule.top_p, max_tokens=min(longest, room))
    if request.longest is not None and request.longest > room:
        raise ContextLengthExceeded(
            f"{num_prompt} prompt tokens and an answer of {request.longest} exceed this policy's context of {context}",
            param="max_tokens" if request.max_completion_tokens is None else "max_completion_tokens",
        )
    return Sampling(
        temperature=rule.temperature if request.temperature is None else request.temperature,
        top_p=rule.top_p if request.top_p is None else request.top_p,
        top_k=max(request.top_k or 0, 0),
        min_p=request.min_p or 0.0,
        max_tokens=request.longest or min(rule.max_tokens, room),
        seed=request.seed,
    )


def may_log(request: ChatRequest, task: Task, purpose: Purpose) -> bool:
    """Whether the generation may be kept: `store` decides; without it the task does, for users."""
    return request.store if request.store is not None else purpose != "user" or task.consent == "train"


def _seed_of(seed: int, choice: int) -> int:
    # Not a sum: choice 1 of seed 1 would be choice 0 of seed 2.
    return int.from_bytes(blake2b(f"{seed}:{choice}".encode(), digest_size=8).digest(), "little", signed=True)
