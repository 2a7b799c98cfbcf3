"""The objectives that the trainer knows, by name.

A new one is a subclass of `Surrogate` in a file here, and a line in `OBJECTIVES`. `docs/training.md` has their sources and what
each did on the bench, `python -m benchmarks.objectives`.
"""

from __future__ import annotations

from collections.abc import Callable

from contracts.errors import InvalidSettings
from pipelines.training.learning.objectives.base import Surrogate
from pipelines.training.learning.objectives.dppo import Dppo
from pipelines.training.learning.objectives.m2po import M2po
from pipelines.training.learning.objectives.ppo import Gspo, Ppo
from pipelines.training.learning.objectives.truncated import Cispo, Truncated
from pipelines.training.learning.objectives.vcpo import Vcpo

OBJECTIVES: dict[str, Callable[[float], Surrogate]] = {
    "truncated": Truncated,
    "dppo": Dppo,
    "ppo": Ppo,
    "gspo": Gspo,
    "cispo": lambda _bound: Cispo(),
    "m2po": M2po,
    "vcpo": Vcpo,
}
"""Name to a function of the ratio bound."""


def objective_named(name: str, bound: float, *, where: str = "[training] loss") -> Surrogate:
    """The objective of a name.

    Args:
        name: a name in `OBJECTIVES`.
        bound: the setting `ratio_bound`. CISPO has its own.
        where: the setting that names it, for the error.

    Raises:
        InvalidSettings: no objective has this name.
    """
    if name not in OBJECTIVES:
        raise InvalidSettings(f"{where}: {name!r} is unknown; it is one of {', '.join(sorted(OBJECTIVES))}")
    return OBJECTIVES[name](bound)
