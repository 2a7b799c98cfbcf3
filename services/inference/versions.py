"""Which versions may answer a request: what its model and its metadata say. Pure.

`metadata.min_version` and `metadata.exact_version` hold for every token of the answer. If the requirement cannot be met now, the
request is refused, and a retry may succeed. The model `POLICY@vN` differs: it names the version of the first token, a swap may
follow between two tokens, and a version that is not loaded is an unknown model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from contracts.errors import InvalidRequest, UnknownModel, VersionNotServed

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


def pinned_version(model: str, policy: str) -> int | None:
    """The version that a request's `model` names: N for `POLICY@vN`, None for `POLICY`.

    Raises:
        UnknownModel: it has neither form.
    """
    if model == policy:
        return None
    if found := re.fullmatch(f"{re.escape(policy)}@v({NUMBER})", model):
        return int(found[1])
    raise UnknownModel(
        f"the model {model!r} does not exist; ask for {policy!r} or one version of it, {policy + '@v3'!r}",
        param="model",
    )


def version_requirement(labels: Mapping[str, str], pinned: int | None) -> VersionRequirement:
    """The requirement in a request's metadata; `pinned`: the version that its model names.

    Raises:
        InvalidRequest: it is not a number, or there is more than one requirement; `param` says which.
    """
    names = [name for name in (MINIMUM, EXACT) if name in labels]
    numbers = {name: _number(name, labels[name]) for name in names}
    if names and pinned is not None:
        raise InvalidRequest(
            f"the model names v{pinned} already; leave out metadata.{names[0]}, or `@v{pinned}`",
            param=f"metadata.{names[0]}",
        )
    if len(names) > 1:
        raise InvalidRequest(f"metadata takes {MINIMUM} or {EXACT}, not both", param=f"metadata.{EXACT}")
    return VersionRequirement(numbers.get(MINIMUM), numbers.get(EXACT), pinned)


def _number(name: str, text: str) -> int:
    if not re.fullmatch(NUMBER, text):
        raise InvalidRequest(
            f'metadata.{name} is the number of a version, in digits: "7", not {text!r}', param=f"metadata.{name}"
        )
    return int(text)
