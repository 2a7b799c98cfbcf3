"""On which terms a request is answered, as its fields, its headers and its caller say. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, get_args

from tokenizers import Tokenizer

from contracts.errors import InvalidRequest
from contracts.keys import Caller
from contracts.records import Purpose
from contracts.tasks import Task
from services.inference.requests import ChatRequest
from services.inference.versions import VersionRequirement


class Terms(NamedTuple):
    """See the module."""

    requirement: VersionRequirement
    version: int | None
    """The one that its model or its metadata names."""
    purpose: Purpose
    task: Task
    logged: bool
    """False: consent forbids keeping it."""
    cache_scope: str
    """Whose prompts an engine may answer from the same computed beginnings: the keys of the tenant that have the caller's role, with the
    same purpose. So neither time nor usage tells a tenant what another one asked, and sentinels and operators are strangers to users."""

    may_draw: bool
    """Whether its arm may be drawn: it names no version, and a user asks."""


def read_terms(
    request: ChatRequest,
    caller: Caller,
    purpose_header: str | None,
    requirement: VersionRequirement,
    *,
    tasks: Mapping[str, Task],
    tokenizer: Tokenizer,
) -> Terms:
    """Read them.

    Raises:
        InvalidRequest: there is no such purpose, task or token id; `param` names the field.
        Forbidden: only operators may send a purpose other than `user`.
    """
    purpose = _purpose_of(purpose_header, caller)
    _check_token_ids(request, tokenizer)
    task = _task_of(request, tasks)
    version = requirement.exact if requirement.pinned is None else requirement.pinned
    return Terms(
        requirement=requirement,
        version=version,
        purpose=purpose,
        task=task,
        logged=_may_log(request, task, purpose),
        cache_scope=f"{caller.role}\0{purpose}\0{caller.tenant}",
        may_draw=purpose == "user" and version is None and requirement.minimum is None,
    )


def _purpose_of(header: str | None, caller: Caller) -> Purpose:
    for purpose in get_args(Purpose):
        if purpose == (header or "user"):
            if purpose != "user":
                caller.require_operator()
            return purpose  # type: ignore[no-any-return] # get_args is untyped
    raise InvalidRequest(f"x-millrace-purpose is one of {', '.join(get_args(Purpose))}, not {header!r}")


def _check_token_ids(request: ChatRequest, tokenizer: Tokenizer) -> None:
    unknown = [token_id for token_id in request.logit_bias if tokenizer.id_to_token(token_id) is None]
    if unknown:
        raise InvalidRequest(
            f"logit_bias: {unknown[0]} is not a token of this policy, which has {tokenizer.get_vocab_size():,}",
            param="logit_bias",
        )


def _task_of(request: ChatRequest, tasks: Mapping[str, Task]) -> Task:
    """The task of `metadata.task`; without it the first task."""
    name = request.labels.get("task")
    if name is None:
        return next(iter(tasks.values()))
    if name not in tasks:
        raise InvalidRequest(f"no task is called {name!r}; there are {sorted(tasks)}", param="metadata.task")
    return tasks[name]


def _may_log(request: ChatRequest, task: Task, purpose: Purpose) -> bool:
    """`store` decides; without it, the task's consent does for users."""
    return request.store if request.store is not None else purpose != "user" or task.consent == "train"
