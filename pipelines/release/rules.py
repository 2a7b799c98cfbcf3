"""The gate, without I/O: what a candidate must show before users meet it.

On every gated task it is compared with what is live and with a frozen anchor: the newest version that was proven better than
the anchor before it. It is refused where it is worse beyond chance, and else accepted: the anchor sees what many small steps
down add up to. All comparisons of one candidate together ring falsely in at most `FALSE_REFUSALS` of versions that are no
worse (Bonferroni: each has its share of that level).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.release.statistics import Paired, compare, least_difference

FALSE_REFUSALS = 0.005
LIVE, ANCHOR = "live", "anchor"

Values = Mapping[int, Sequence[float]]
"""By version: the value of its answer to each sentinel of one task, in order."""


class Question(NamedTuple):
    """One gated task: the values of the candidate and of its references, and against whom they are held."""

    task: str
    graders: tuple[str, ...]
    margin: float
    references: Mapping[str, int]
    """Role (`LIVE`, `ANCHOR`) to version; the anchor stands alone where nothing else may be compared with."""
    values: Values


class Comparison(NamedTuple):
    """A candidate against one reference on one task."""

    task: str
    role: str
    version: int
    value: float
    against: float
    paired: Paired
    alpha: float

    @property
    def least_difference(self) -> float | None:
        """What it could have seen."""
        return least_difference(self.paired, self.alpha)

    @property
    def is_worse(self) -> bool:
        """Beyond chance."""
        return self.paired.p_worse <= self.alpha

    @property
    def is_better(self) -> bool:
        """Beyond chance."""
        return self.paired.p_better <= self.alpha

    @property
    def facts(self) -> dict[str, Any]:
        """As it is stored, and as `millrace gate` prints it."""
        return {
            "reference": self.role,
            "version": self.version,
            "value": self.value,
            "against": self.against,
            "num": self.paired.num,
            "wins": self.paired.wins,
            "losses": self.paired.losses,
            "discordant": self.paired.wins + self.paired.losses,
            "p": self.paired.p_worse,
            "p_better": self.paired.p_better,
            "alpha": self.alpha,
            "least_difference": self.least_difference,
            "test": "sign" if self.paired.is_binary else "permutation",
        }

    @property
    def words(self) -> str:
        """In one line."""
        return f"{self.value - self.against:+.3f} against v{self.version} ({self.role}, {self.against:.3f})"


class Decision(NamedTuple):
    """The verdict on a candidate, in words a person can act on."""

    accepted: bool
    reason: str
    comparisons: tuple[Comparison, ...] = ()

    @property
    def proven_on(self) -> tuple[str, ...]:
        """Tasks on which an accepted candidate is better than the anchor beyond chance: it is the next anchor there."""
        if not self.accepted:
            return ()
        # Where one version is both, it stands as live.
        anchored = {item.task: item for item in sorted(self.comparisons, key=lambda item: item.role == ANCHOR)}
        return tuple(task for task, item in anchored.items() if item.is_better)


def decide(questions: Sequence[Question], candidate: int, ungated: Mapping[str, str]) -> Decision:
    """Accept or refuse. `ungated`: tasks that nothing proves, and why."""
    unproven = f"; ungated: {', '.join(f'{task} ({why})' for task, why in ungated.items())}" if ungated else ""
    if not questions:
        return Decision(True, f"accepted unseen: no task is gated{unproven}")
    found = compare_all(questions, candidate)
    if worse := [item for item in found if item.is_worse]:
        return Decision(False, "; ".join(map(_refusal, worse)) + unproven, found)
    return Decision(True, "; ".join(_told(question, candidate, found) for question in questions) + unproven, found)


def compare_all(questions: Sequence[Question], candidate: int) -> tuple[Comparison, ...]:
    """A candidate against every reference on every task, each at its share of `FALSE_REFUSALS`."""
    num_references = max((len(set(question.references.values())) for question in questions), default=1)
    alpha = FALSE_REFUSALS / max(1, len(questions) * num_references)
    return tuple(item for question in questions for item in _compared(question, candidate, alpha))


def refused_in_a_row(accepted: Sequence[bool]) -> int:
    """How many refusals end a history, oldest verdict first."""
    count = 0
    for verdict in reversed(accepted):
        if verdict:
            break
        count += 1
    return count


def mean(values: Sequence[float]) -> float:
    """Of at least one."""
    return sum(values) / len(values)


def _compared(question: Question, candidate: int, alpha: float) -> list[Comparison]:
    mine, done, found = question.values[candidate], set[int](), []
    for role, version in question.references.items():
        if version in done:
            continue
        done.add(version)
        theirs = question.values[version]
        paired = compare(mine, theirs, margin=question.margin, alpha=alpha)
        found.append(Comparison(question.task, role, version, mean(mine), mean(theirs), paired, alpha))
    return found


def _refusal(item: Comparison) -> str:
    paired = item.paired
    return (
        f"{item.task}: worse than v{item.version} ({item.role}): {item.value:.3f} against {item.against:.3f}, {paired.losses} "
        f"lost and {paired.wins} won of {paired.num}, p = {paired.p_worse:.2g} (limit {item.alpha:.2g}); {_sees(item)}"
    )


def _told(question: Question, candidate: int, found: Sequence[Comparison]) -> str:
    of_task = [item for item in found if item.task == question.task]
    against = ", ".join(item.words for item in of_task)
    return f"{question.task}: {mean(question.values[candidate]):.3f}, {against}; {_sees(of_task[0])}"


def _sees(item: Comparison) -> str:
    if item.least_difference is None:
        return f"{item.paired.num} sentinels are too few to see anything"
    return f"sees {100 * item.least_difference:.1f} points"
