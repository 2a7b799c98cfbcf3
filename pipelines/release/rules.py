"""The rules of the gate: what a candidate must show before users get it. Pure.

On every gated task the candidate is compared with the live version and with an anchor: the newest version that was proven better
than the anchor before it. It is refused if it is worse beyond chance than either, else it is accepted. The anchor catches many small
steps down that add up. All these comparisons of a candidate together falsely refuse at most the share `FALSE_REFUSALS` of versions that
are not worse (Bonferroni: each comparison gets its share of that level). The version on the train is compared with too, which refuses
nothing: the train changes over to a candidate that is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.release.statistics import Paired, compare, least_difference

FALSE_REFUSALS = 0.005
LIVE, ANCHOR, TRAIN = "live", "anchor", "train"

Values = Mapping[int, Sequence[float]]
"""By version: the value of its answer to each sentinel of one task, in order."""


class GatedTask(NamedTuple):
    """One gated task: the references of the candidate, and the values of all their answers."""

    name: str
    graders: tuple[str, ...]
    margin: float
    references: Mapping[str, int]
    """Role (`LIVE`, `ANCHOR`, `TRAIN`) to version; no live one if it was revoked, and no train unless it is another version."""
    values: Values


class GateComparison(NamedTuple):
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
        """The least difference that the comparison could have detected; None if it could detect none."""
        return least_difference(self.paired, self.alpha)

    @property
    def is_worse(self) -> bool:
        """True if the candidate is worse beyond chance."""
        return self.paired.p_worse <= self.alpha

    @property
    def is_better(self) -> bool:
        """True if the candidate is better beyond chance."""
        return self.paired.p_better <= self.alpha

    @property
    def facts(self) -> dict[str, Any]:
        """The form that is stored, and that `millrace gate` prints."""
        paired = self.paired
        about = {"reference": self.role, "version": self.version, "value": self.value, "against": self.against}
        seen = {"num": paired.num, "wins": paired.wins, "losses": paired.losses}
        seen |= {"discordant": paired.wins + paired.losses}
        test = {"p": paired.p_worse, "p_better": paired.p_better, "test": "sign" if paired.is_binary else "permutation"}
        return {**about, **seen, **test, "alpha": self.alpha, "least_difference": self.least_difference}

    @property
    def words(self) -> str:
        """The comparison in one line."""
        return f"{self.value - self.against:+.3f} against v{self.version} ({self.role}, {self.against:.3f})"


class Decision(NamedTuple):
    """The decision about a candidate, with a reason that a person can act on."""

    accepted: bool
    reason: str
    comparisons: tuple[GateComparison, ...] = ()

    @property
    def proven_on(self) -> tuple[str, ...]:
        """Tasks on which an accepted candidate is better than the anchor beyond chance: it becomes their next anchor."""
        if not self.accepted:
            return ()
        # A version that is both live and anchor is compared once, as live.
        judged = [item for item in self.comparisons if item.role != TRAIN]
        anchored = {item.task: item for item in sorted(judged, key=lambda item: item.role == ANCHOR)}
        return tuple(task for task, item in anchored.items() if item.is_better)


def decide(tasks: Sequence[GatedTask], candidate: int, ungated: Mapping[str, str]) -> Decision:
    """Accept or refuse a candidate. `ungated`: tasks without a check, and why."""
    unproven = f"; ungated: {', '.join(f'{name} ({why})' for name, why in ungated.items())}" if ungated else ""
    if not tasks:
        return Decision(True, f"unseen: no task is gated{unproven}")
    found = compare_all(tasks, candidate)
    if worse := [item for item in found if item.is_worse and item.role != TRAIN]:
        return Decision(False, "; ".join(map(_refusal, worse)) + unproven, found)
    return Decision(True, "; ".join(_told(task, candidate, found) for task in tasks) + unproven, found)


def compare_all(tasks: Sequence[GatedTask], candidate: int) -> tuple[GateComparison, ...]:
    """Compare a candidate with every reference on every task, each at its share of `FALSE_REFUSALS`."""
    roles = [task.references.items() for task in tasks]
    num_references = max((len({version for role, version in items if role != TRAIN}) for items in roles), default=1)
    alpha = FALSE_REFUSALS / max(1, len(tasks) * num_references)
    return tuple(item for task in tasks for item in _compared(task, candidate, alpha))


def refused_in_a_row(accepted: Sequence[bool]) -> int:
    """The number of refusals at the end of a history, which begins with the oldest verdict."""
    count = 0
    for verdict in reversed(accepted):
        if verdict:
            break
        count += 1
    return count


def mean(values: Sequence[float]) -> float:
    """The mean of at least one value."""
    return sum(values) / len(values)


def _compared(task: GatedTask, candidate: int, alpha: float) -> list[GateComparison]:
    mine, done, found = task.values[candidate], set[int](), []
    for role, version in task.references.items():
        if version in done:
            continue
        done.add(version)
        theirs = task.values[version]
        paired = compare(mine, theirs, margin=task.margin, alpha=alpha)
        found.append(GateComparison(task.name, role, version, mean(mine), mean(theirs), paired, alpha))
    return found


def _refusal(item: GateComparison) -> str:
    paired = item.paired
    return (
        f"{item.task}: worse than v{item.version} ({item.role}): {item.value:.3f} against {item.against:.3f}, {paired.losses} "
        f"lost and {paired.wins} won of {paired.num}, p = {paired.p_worse:.2g} (limit {item.alpha:.2g}); {_sees(item)}"
    )


def _told(task: GatedTask, candidate: int, found: Sequence[GateComparison]) -> str:
    of_task = [item for item in found if item.task == task.name]
    against = ", ".join(item.words for item in of_task)
    return f"{task.name}: {mean(task.values[candidate]):.3f}, {against}; {_sees(of_task[0])}"


def _sees(item: GateComparison) -> str:
    if item.least_difference is None:
        return f"{item.paired.num} sentinels are too few to see anything"
    return f"sees {100 * item.least_difference:.1f} points"
