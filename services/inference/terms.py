"""On which terms a request is answered, as its fields, its headers and its caller say: versions, purpose, task, consent. Pure.

`metadata.min_version` and `metadata.exact_version` hold for every token of the answer. If the requirement cannot be met now, the
request is refused, and a retry may succeed. The model `POLICY@vN` differs: it names the version of the first token, a swap may
follow between two tokens, and a version that is not loaded is an unknown model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, get_args

from tokenizers import Tokenizer

from contracts.draws import is_asked
from contracts.errors import InvalidRequest, UnknownModel, VersionNotServed, field_error
from contracts.keys import Caller
from contracts.records import Purpose
from contracts.tasks import Task
from services.inference.requests import ChatRequest

MINIMUM, EXACT = "min_version", "exact_version"
NUMBER = "0|[1-9][0-9]{0,17}"
"""A regular expression: the number of a version."""


class VersionRequirement(NamedTuple):
    """At most one of the three is set; without `minimum` and `exact`, tokens of any version will do."""

    minimum: int | None = None
    exact: int | None = None
    pinned: int | None = None
    """The version that the model names: it makes the first token."""

    @property
    def any_will_do(self) -> bool:
        """True if there is no requirement."""
        return self.minimum is None and self.exact is None

    def is_met_by(self, version: int | None) -> bool:
        """Whether tokens of this version may be shown. None, an unknown version, meets no requirement."""
        if version is None:
            return self.any_will_do
        return self.exact in (None, version) and (self.minimum is None or version >= self.minimum)

    def check(self, versions: Iterable[int | None]) -> None:
        """Raises VersionNotServed unless tokens of all these versions may be shown."""
        for version in versions:
            if not self.is_met_by(version):
                raise self.refusal("the version that serves is unknown" if version is None else f"v{version} is served")

    def refused_by(self, assigned: int | None) -> VersionNotServed | None:
        """The refusal of a minimum, if the chosen arm is assigned an older version; None if only the tokens can tell.

        An exact version is left to the engine: it may still hold the version of a moment ago, and else refuses at once too.
        """
        if self.minimum is None or assigned is None or self.is_met_by(assigned):
            return None
        return self.refusal(f"v{assigned} is served")

    def refusal(self, served: str) -> VersionNotServed:
        """The error for a requirement that is not met; `served` says what there is instead."""
        name, needed = (MINIMUM, f"v{self.minimum} or newer") if self.exact is None else (EXACT, f"v{self.exact}")
        return VersionNotServed(
            f"metadata.{name} requires {needed}; now {served}; try again later, another version may be loaded then",
            param=f"metadata.{name}",
        )


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

    @property
    def ask_probability(self) -> float:
        """The probability that the app is told to ask its user; 0 without a user, or if nothing may be kept."""
        rule = self.task.asking
        return rule.probability if rule is not None and self.purpose == "user" and self.logged else 0.0

    def asking(self, completion_id: str) -> dict[str, bool]:
        """What replies say of whether the app should ask its user; nothing if the task has no rule for asking."""
        return {} if self.task.asking is None else {"ask_feedback": is_asked(completion_id, self.ask_probability)}


def read_terms(
    request: ChatRequest,
    caller: Caller,
    purpose_header: str | None,
    policy: str,
    *,
    tasks: Mapping[str, Task],
    tokenizer: Tokenizer | None = None,
) -> Terms:
    """Read them; without a tokenizer, token ids are not looked at. Raises UnknownModel; InvalidRequest: no such version, purpose, task or token id; Forbidden: only for operators."""
    requirement = version_requirement(request.labels, pinned_version(request.model, policy))
    purpose = _purpose_of(purpose_header, caller)
    biased = request.logit_bias if tokenizer else ()
    unknown = next((token_id for token_id in biased if tokenizer and tokenizer.id_to_token(token_id) is None), None)
    if tokenizer and unknown is not None:
        known = f"is not a token of this policy, which has {tokenizer.get_vocab_size():,}"
        raise InvalidRequest(f"logit_bias: {unknown} {known}", param="logit_bias")
    name = request.labels.get("task", next(iter(tasks)))
    if (task := tasks.get(name)) is None:
        raise InvalidRequest(f"no task is called {name!r}; there are {sorted(tasks)}", param="metadata.task")
    version = requirement.exact if requirement.pinned is None else requirement.pinned
    consents = purpose != "user" or task.consent == "train"
    return Terms(
        requirement=requirement,
        version=version,
        purpose=purpose,
        task=task,
        logged=consents if request.store is None else request.store,
        cache_scope=f"{caller.role}\0{purpose}\0{caller.tenant}",
        may_draw=purpose == "user" and version is None and requirement.minimum is None,
    )


def pinned_version(model: str, policy: str) -> int | None:
    """The version that a `model` names: N for `POLICY@vN`, None for `POLICY`. Raises UnknownModel: it has neither form."""
    if model == policy:
        return None
    if found := re.fullmatch(f"{re.escape(policy)}@v({NUMBER})", model):
        return int(found[1])
    known = f"ask for {policy!r} or one version of it, {policy + '@v3'!r}"
    raise UnknownModel(f"the model {model!r} does not exist; {known}", param="model")


def version_requirement(labels: Mapping[str, str], pinned: int | None) -> VersionRequirement:
    """The requirement of a request's metadata and model (`pinned`). Raises InvalidRequest: no number, or more than one requirement."""
    names = [name for name in (MINIMUM, EXACT) if name in labels]
    numbers = {name: _number(name, labels[name]) for name in names}
    if names and pinned is not None:
        where = f"metadata.{names[0]}"
        raise InvalidRequest(f"the model names v{pinned} already; leave out {where}, or `@v{pinned}`", param=where)
    if len(names) > 1:
        raise InvalidRequest(f"metadata takes {MINIMUM} or {EXACT}, not both", param=f"metadata.{EXACT}")
    return VersionRequirement(numbers.get(MINIMUM), numbers.get(EXACT), pinned)


def _number(name: str, text: str) -> int:
    if not re.fullmatch(NUMBER, text):
        raise field_error(f"metadata.{name}", f'is the number of a version, in digits: "7", not {text!r}')
    return int(text)


_ASKED: tuple[Purpose, ...] = tuple(purpose for purpose in get_args(Purpose) if purpose != "imported")
"""Purposes of a request. An imported answer was given elsewhere."""


def _purpose_of(header: str | None, caller: Caller) -> Purpose:
    for purpose in _ASKED:
        if purpose == (header or "user"):
            if purpose != "user":
                caller.require_operator()
            return purpose
    raise InvalidRequest(f"x-millrace-purpose is one of {', '.join(_ASKED)}, not {header!r}")
