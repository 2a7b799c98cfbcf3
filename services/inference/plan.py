"""What is decided about a request before the engine sees it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple, get_args

import msgspec
from tokenizers import Tokenizer

from contracts.draws import LoggedDraw, is_asked, is_exploring
from contracts.errors import ContextLengthExceeded, InvalidRequest, VersionNotServed
from contracts.keys import Caller, Owner
from contracts.records import Attempt, Purpose
from contracts.sampling import Sampling
from contracts.tasks import SamplingRule, Task
from services.inference.arms import ChosenArm
from services.inference.parts import AnswerParser
from services.inference.requests import ChatRequest
from services.inference.sessions.turns import Turn
from services.inference.versions import VersionRequirement


class RequestPlan(NamedTuple):
    """A request and every decision about it."""

    completion_id: str
    created_at: float
    policy: str
    tenant: str
    request: ChatRequest
    task: Task
    purpose: Purpose
    arm: ChosenArm
    sampling: Sampling
    prompt_ids: list[int]
    logged: bool
    """False: consent forbids keeping it."""
    requirement: VersionRequirement
    refusal: VersionNotServed | None
    """Why it cannot be answered now. A repeat under the same idempotency key still gets the answer that is kept."""
    draw: LoggedDraw | None = None
    """How its arm was drawn; None: nothing was drawn."""
    attempt: Attempt | None = None
    """Which attempt of a user's request it is, if the client counts them."""
    grammar: Mapping[str, Any] | None = None
    """What limits the tokens of the answer, as vLLM's `structured_outputs`; None: nothing."""
    new_parser: Callable[[], AnswerParser] | None = None
    """Makes the parser of a choice; None: every answer is all content."""
    turn: Turn | None = None
    """Its place in its session; None without a session."""
    cache_scope: str = ""
    """Whose prompts an engine may answer from the same computed beginnings; empty: nobody else's."""
    budget: str | None = None
    """The session whose budget pays for it; None: its key is not that of a session."""

    @property
    def owner(self) -> Owner:
        """To whom belongs what is kept of it."""
        return Owner(self.tenant, self.budget)

    def sampling_of(self, choice: int) -> Sampling:
        """How one choice is sampled: like the request, with a seed for each choice."""
        seed = self.sampling.seed
        if seed is None or choice == 0:
            return self.sampling
        return msgspec.structs.replace(self.sampling, seed=_seed_of(seed, choice))

    def shortened(self, most: int) -> RequestPlan:
        """The plan with answers of at most so many tokens."""
        return self._replace(
            sampling=msgspec.structs.replace(self.sampling, max_tokens=min(self.sampling.max_tokens, most))
        )

    @property
    def grammar_param(self) -> str:
        """The field of the request from which the grammar was made."""
        return "tools" if self.sampling.constraint == "tool" else "response_format"

    @property
    def ask_probability(self) -> float:
        """The probability that the app is told to ask its user; 0 without a user, or if nothing may be kept."""
        rule = self.task.asking
        return rule.probability if rule is not None and self.purpose == "user" and self.logged else 0.0

    @property
    def ask_feedback(self) -> bool | None:
        """Whether the app should ask its user; None if the task has no rule for asking."""
        return None if self.task.asking is None else is_asked(self.completion_id, self.ask_probability)


def find_task(tasks: Mapping[str, Task], request: ChatRequest) -> Task:
    """The task of `metadata.task`; without it the first task.

    Raises:
        InvalidRequest: there is no such task.
    """
    name = request.labels.get("task")
    if name is None:
        return next(iter(tasks.values()))
    if name not in tasks:
        raise InvalidRequest(f"no task is called {name!r}; there are {sorted(tasks)}", param="metadata.task")
    return tasks[name]


def decide_refusal(requirement: VersionRequirement, assigned: int | None) -> VersionNotServed | None:
    """The refusal of a minimum version, if the chosen arm is assigned an older one; None if only the tokens can tell.

    An exact version is left to the engine: it may still hold the version of a moment ago, and else refuses at once too.
    """
    if requirement.minimum is None or assigned is None or requirement.is_met_by(assigned):
        return None
    return requirement.refusal(f"v{assigned} is served")


def decide_purpose(header: str | None, caller: Caller) -> Purpose:
    """The purpose of a request. Only operators may send one other than `user`.

    Raises:
        InvalidRequest: there is no such purpose.
        Forbidden: the key is not an operator's.
    """
    for purpose in get_args(Purpose):
        if purpose == (header or "user"):
            if purpose != "user":
                caller.require_operator()
            return purpose  # type: ignore[no-any-return] # get_args is untyped
    raise InvalidRequest(f"x-millrace-purpose is one of {', '.join(get_args(Purpose))}, not {header!r}")


def cache_scope_of(caller: Caller, purpose: Purpose) -> str:
    """Who may share computed beginnings of prompts with a caller: the keys of its tenant that have its role, with the same purpose.

    So neither time nor usage tells a tenant what another one asked, and sentinels and operators are strangers to users.
    """
    return f"{caller.role}\0{purpose}\0{caller.tenant}"


def decide_sampling(
    request: ChatRequest,
    rule: SamplingRule,
    purpose: Purpose,
    num_prompt: int,
    context: int,
) -> Sampling:
    """The sampling parameters: the task's if it owns them and a user asks, else the caller's.

    If the task owns the parameters, a user's seed, biases and penalties are ignored like the temperature: an app that always
    sends the same seed would always get the same answer, and biased samples could not be trained on. The response says which
    parameters were used.

    Any caller may ask for a shorter answer than the task allows. An answer is cut to what the context leaves, unless a
    caller who owns the parameters asked for a length: then the request is refused.

    Raises:
        ContextLengthExceeded: the prompt, or the prompt with the requested length, does not fit.
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
        repetition_penalty=1.0 if request.repetition_penalty is None else request.repetition_penalty,
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        logit_bias=request.logit_bias,
    )


def explored(sampling: Sampling, rule: SamplingRule, purpose: Purpose, completion_id: str) -> Sampling:
    """The sampling of one completion: of users' answers, the task's share explores at its temperature."""
    explore = rule.explore
    if explore is None or purpose != "user" or not is_exploring(completion_id, explore.share):
        return sampling
    return msgspec.structs.replace(sampling, temperature=explore.temperature)


def check_token_ids(request: ChatRequest, tokenizer: Tokenizer) -> None:
    """Raises InvalidRequest if `logit_bias` has an id that is not a token of the policy."""
    unknown = [token_id for token_id in request.logit_bias if tokenizer.id_to_token(token_id) is None]
    if unknown:
        raise InvalidRequest(
            f"logit_bias: {unknown[0]} is not a token of this policy, which has {tokenizer.get_vocab_size():,}",
            param="logit_bias",
        )


def may_log(request: ChatRequest, task: Task, purpose: Purpose) -> bool:
    """Whether the generation may be kept: `store` decides; without it, the task's consent does for users."""
    return request.store if request.store is not None else purpose != "user" or task.consent == "train"


def _seed_of(seed: int, choice: int) -> int:
    # A hash, since with a sum choice 1 of seed 1 would equal choice 0 of seed 2.
    return int.from_bytes(blake2b(f"{seed}:{choice}".encode(), digest_size=8).digest(), "little", signed=True)
