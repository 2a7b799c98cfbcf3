"""Which versions may answer: what a request asks for beside its model, and whether that is met. Pure.

`metadata.min_version` and `metadata.exact_version` are promises about every token of the answer; one that cannot be kept now
is refused, and may be asked for again. The model `POLICY@vN` is less and more: it names who begins, a swap may still come
between two tokens, and a version that is not there is a model that does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from contracts.errors import InvalidRequest, VersionNotServed

MINIMUM, EXACT = "min_version", "exact_version"


class VersionRequirement(NamedTuple):
    """At most one of the two; neither: any version will do."""

    minimum: int | None = None
    exact: int | None = None

    @property
    def any_will_do(self) -> bool:
        """True if nothing was asked for."""
        return self.minimum is None and self.exact is None

    def is_met_by(self, version: int | None) -> bool:
        """Whether tokens of this version may be shown; None, nobody knows which made them, meets only the absence of a wish."""
        if version is None:
            return self.any_will_do
        return self.exact in (None, version) and (self.minimum is None or version >= self.minimum)

    def check(self, versions: Iterable[int | None]) -> None:
        """Raises VersionNotServed unless each of these may be shown."""
        for version in versions:
            if not self.is_met_by(version):
                raise self.refusal("nobody knows what is served" if version is None else f"v{version} is served")

    def refusal(self, served: str) -> VersionNotServed:
        """What to say when the wish is not met; `served` says what there is instead."""
        name, wish = (MINIMUM, f"v{self.minimum} or newer") if self.exact is None else (EXACT, f"v{self.exact}")
        return VersionNotServed(
            f"metadata.{name} asks for {wish}; now {served}; try again: a version that is on its way may have arrived",
            param=f"metadata.{name}",
        )


def version_requirement(labels: Mapping[str, str], pinned: int | None) -> VersionRequirement:
    """What a request's metadata asks for; `pinned` is the version that its model names.

    Raises:
        InvalidRequest: no number, or more than one wish; `param` says which.
    """
    names = [name for name in (MINIMUM, EXACT) if name in labels]
    numbers = {name: _number(name, labels[name]) for name in names}
    if names and pinned is not None:
        raise InvalidRequest(
            f"the model names v{pinned} already; leave metadata.{names[0]} out, or `@v{pinned}`",
            param=f"metadata.{names[0]}",
        )
    if len(names) > 1:
        raise InvalidRequest(f"metadata takes {MINIMUM} or {EXACT}, not both", param=f"metadata.{EXACT}")
    return VersionRequirement(minimum=numbers.get(MINIMUM), exact=numbers.get(EXACT))


def _number(name: str, text: str) -> int:
    if not re.fullmatch("0|[1-9][0-9]{0,17}", text):
        raise InvalidRequest(
            f'metadata.{name} is the number of a version, in digits: "7", not {text!r}', param=f"metadata.{name}"
        )
    return int(text)
