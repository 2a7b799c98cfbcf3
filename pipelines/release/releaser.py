"""Judges candidates: an accepted one goes to the release train, or without one becomes live; a refused one leaves.

In: the arm `candidate` of the assignments. Out: a stored verdict, and the arm `learning` (without a train: `live`) moved to an accepted
version; after several refusals in a row the arm `training` sends the trainer back. Waits: for a candidate without a verdict, and while
an operator holds the arms. A fault of our own (a grader, the engine, the database, a bug here) gives no verdict: nothing is stored, the age
of the candidate rises in the metrics, and it is judged again after a growing pause.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import structlog
from sqlalchemy import Connection

from contracts import assignments, holds, revocations
from contracts.assignments import CANARY, CANDIDATE, LIVE, MOVED, Assignment
from contracts.errors import InvalidSettings, Unavailable, VersionNotResident
from contracts.gating import Grade, SentinelFile
from contracts.tasks import Task
from pipelines.release import repository, rules
from pipelines.release.asking import BadVersion, NoLongerAssigned, SentinelAnswer, SentinelClient
from pipelines.release.grading import grade_together
from pipelines.release.looping import LookLoop
from pipelines.release.repository import VersionVerdict
from pipelines.release.rules import ANCHOR, TRAIN, Decision, GatedTask
from pipelines.release.settings import ReleaseSettings
from pipelines.release.train.standing import TrainSlots, version_of
from runtime.database import Database
from runtime.metrics import CANDIDATE_AGE_SECONDS, LIVE_AGE_SECONDS, LIVE_VERSION, NO_VERDICTS, VERDICTS
from runtime.operations import step_done
from runtime.replicas import Bell

_ASK_TRAIN_SECONDS = 600.0
_LOOP = LookLoop("gate", "no verdict", NO_VERDICTS, pause_seconds=0.2, fatal=(InvalidSettings,))

log = structlog.get_logger()


@dataclass(eq=False)
class Releaser:
    """Judges the candidates of one policy. `tasks`: all of the home; `grade`: their graders; `clock`: UTC epoch seconds."""

    database: Database
    sentinel_client: SentinelClient
    sentinels: SentinelFile
    grade: Grade
    _: KW_ONLY
    tasks: Mapping[str, Task]
    policy: str
    settings: ReleaseSettings
    bell: Bell
    slots: TrainSlots
    each_look: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._unasked: set[int] = set()
        self._ask_train_at: dict[int, float] = {}
        """By version on the train that could not be asked: when it is asked again."""
        self._since: float | None = None
        self._live_since: float | None = None
        # Computed at each scrape, so that the age rises even while a look hangs.
        CANDIDATE_AGE_SECONDS.set_function(
            lambda: max(0.0, self.clock() - self._since) if self._since is not None else 0.0
        )
        LIVE_AGE_SECONDS.set_function(
            lambda: max(0.0, self.clock() - self._live_since) if self._live_since is not None else 0.0
        )

    def run(self, stop: threading.Event) -> None:
        """Judge until `stop` is set. Raises InvalidSettings: the endpoint refuses a sentinel because of its content."""

        def look() -> None:
            self.each_look()
            self.look(stop)

        # A gate that fails in a loop is not healthy: a step is done only after a look that did not fail.
        _LOOP.run(look, stop, done=step_done)

    def look(self, stop: threading.Event) -> bool:
        """Judge the live version if it has no verdict, else the candidate; False if there is nothing to judge."""
        with self.database.snapshot() as connection:
            arms = assignments.read(connection, self.policy)
            self._since = repository.assigned_since(connection, self.policy, CANDIDATE)
            self._live_since = repository.assigned_since(connection, self.policy, LIVE)
            revoked = revocations.read(connection, self.policy)
            live, candidate = arms.get(LIVE), arms.get(CANDIDATE)
            if live is None or live.version is None:
                return False
            LIVE_VERSION.set(live.version)
            if holds.read(connection, self.policy, now := self.clock()) is not None:
                self._since = None  # it waits because somebody wants it to
                return False
            if self._since is not None and (ended := holds.read_end(connection, self.policy, now)) is not None:
                self._since = max(self._since, ended)
            is_judged = repository.is_judged(connection, self.policy, self.sentinels.hash, live.version)
            draws = self._draws(connection, live.version)
            is_known = self._kept(connection, live.version, draws) is not None
        if candidate is not None and candidate.version in revoked:
            why = revoked[candidate.version].reason
            self._refuse(candidate, live, f"v{candidate.version} was revoked and never comes back: {why}", revoked=True)
        elif not is_judged:
            self._judge_live(live.version, stop)
            return True
        else:
            if not is_known:  # it is resident now, and may no longer be when a candidate must be compared with it
                self._answers_of(live.version, stop, draws)
            self._ask_anchors(live.version, draws, stop)
            if candidate is None or candidate.version is None:
                return False
            train = version_of(arms, CANARY)
            self._judge(candidate, live, stop, is_live_revoked=live.version in revoked, train=train)
        self._since = None
        return True

    def _judge_live(self, version: int, stop: threading.Event) -> None:
        """Measure the live version, which was never a candidate here. The first one becomes the first anchor."""
        with self.database.snapshot() as connection:
            draws = self._draws(connection, version)
        answers = self._answers_of(version, stop, draws)
        tasks = self.sentinels.tasks
        values = {task: self._graded(task, {version: answers})[version] for task in tasks}
        says = [f"{task} {rules.mean(found):.3f}" for task, found in values.items()]
        reason = "; ".join(says) or rules.decide((), version, self.sentinels.ungated).reason
        judged = VersionVerdict(version, True, reason, _accuracy(values), None, self._details(version, values, ()), {})
        with self.database.transaction() as connection:
            repository.store_live(connection, self.policy, judged)
            held = repository.anchors(connection, self.policy)
            if version not in revocations.read(connection, self.policy):
                for task in tasks:
                    if task not in held:
                        repository.set_anchor(connection, self.policy, task, version, "the first judged version")
        log.info("measured", version=version, reason=reason)

    def _judge(
        self,
        candidate: Assignment,
        live: Assignment,
        stop: threading.Event,
        *,
        is_live_revoked: bool,
        train: int | None,
    ) -> None:
        version = _version_of(candidate)
        references, notes = self._references(None if is_live_revoked else _version_of(live))
        with self.database.snapshot() as connection:
            draws = self._draws(connection, _version_of(live))
        try:
            mine = self._answers_of(version, stop, draws)
        except NoLongerAssigned as error:
            log.info("candidate gone", version=version, reason=error.message)
            return
        except BadVersion as error:
            self._refuse(candidate, live, error.message)
            return
        if not all(answer.finite for answer in mine.values()):
            self._refuse(candidate, live, "log-probs are not finite", finite=False)
            return
        said = {version: mine}
        for task, roles in references.items():
            for number in roles.values():
                said.setdefault(number, {})
                if not said[number].keys() >= set(self.sentinels.places_of(task)):
                    said[number] = {**said[number], **self._answers_of(number, stop, draws, (task,))}
        if train not in {None, version} and (theirs := self._answers_of_train(train, stop, draws)):
            said[train] = theirs
            references = {task: {**roles, TRAIN: train} for task, roles in references.items()}
        values = {
            task: self._graded(task, {number: said[number] for number in (version, *roles.values())})
            for task, roles in references.items()
        }
        tasks = [
            GatedTask(task, self.tasks[task].gate_graders, self.tasks[task].gate.margin, roles, values[task])
            for task, roles in references.items()
        ]
        decision = rules.decide(tasks, version, self.sentinels.ungated)
        own = {task: found[version] for task, found in values.items()}
        details = self._details(version, own, decision.comparisons)
        self._store(candidate, live, _verdict(decision, notes, details, own, values))

    def _ask_anchors(self, live: int, draws: Mapping[str, int], stop: threading.Event) -> None:
        """Ask an anchor that is not live its sentinels in the draw that it began, while an engine still holds it."""
        for task in self.sentinels.tasks:
            anchor = draws[task]
            if anchor == live or anchor in self._unasked:
                continue
            with self.database.snapshot() as connection:
                held = self._kept(connection, anchor, draws, (task,)) is not None
                if held or not self.slots.holds(connection, anchor):
                    continue
            try:
                self._answers_of(anchor, stop, draws, (task,))
            except (Unavailable, VersionNotResident) as error:  # another anchor takes its place
                self._unasked.add(anchor)
                log.warning("anchor not asked again", task=task, version=anchor, reason=error.message)

    def _answers_of_train(
        self, version: int, stop: threading.Event, draws: Mapping[str, int]
    ) -> dict[int, SentinelAnswer]:
        """The answers of the version on the train; empty: it does not give them now.

        While an engine holds it, a verdict waits for them as long as for a candidate's; if they do not come, none does for ten minutes.
        """
        with self.database.snapshot() as connection:
            is_due = self.clock() >= self._ask_train_at.get(version, 0.0)
            is_held = is_due and self.slots.holds(connection, version)
            if self._kept(connection, version, draws) is None and not is_held:
                return {}
        try:
            return self._answers_of(version, stop, draws)
        except (Unavailable, VersionNotResident, BadVersion) as error:
            self._ask_train_at[version] = self.clock() + _ASK_TRAIN_SECONDS
            log.warning("version on the train not compared", version=version, reason=error.message)
            return {}

    def _refuse(self, candidate: Assignment, live: Assignment, reason: str, **facts: object) -> None:
        version = _version_of(candidate)
        details = {**self._details(version, {}, ()), **facts}
        self._store(candidate, live, VersionVerdict(version, False, reason, None, None, details, {}))

    def _store(self, candidate: Assignment, live: Assignment, judged: VersionVerdict) -> None:
        with self.database.transaction() as connection:
            arm, most = self.slots.accepting(connection), self.settings.refusals_before_rollback
            repository.store(
                connection, self.policy, candidate, judged, live=live, most_refusals=most, accepted_arm=arm
            )
        self.bell.ring(MOVED)
        VERDICTS.labels(str(judged.accepted).lower()).inc()
        log.info("judged", version=judged.version, accepted=judged.accepted, reason=judged.reason)

    def _references(self, live: int | None) -> tuple[dict[str, dict[str, int]], list[str]]:
        """By task: the versions to compare with, by role; and notes for the verdict. `live`: None if it was revoked."""
        found, notes = dict[str, dict[str, int]](), list[str]()
        with self.database.transaction() as connection:
            anchors = repository.anchors(connection, self.policy)
            for task in self.sentinels.tasks:
                anchor = next(iter(anchors.get(task, ())), None)
                if (
                    anchor is not None
                    and anchor != live
                    and self._kept(connection, anchor, {task: anchor}, (task,)) is None
                ):
                    note = f"v{anchor} was the anchor of {task}; it is not resident and never answered these sentinels"
                    log.warning("anchor replaced", task=task, version=anchor, by=live, reason=note)
                    notes.append(note if live is None else f"{note}: v{live} is from now on")
                    anchor = None
                if anchor is None and live is not None:
                    repository.set_anchor(connection, self.policy, task, live, "; ".join(notes) or "no other was left")
                roles = {rules.LIVE: live} if live is not None else {}
                found[task] = roles if anchor is None else {**roles, ANCHOR: anchor}
                if not found[task]:
                    raise Unavailable(
                        f"the live version was revoked, and {task} has no anchor that was not: roll back or promote another"
                    )
        return found, notes

    def _draws(self, connection: Connection, live: int) -> dict[str, int]:
        """By task: the draw of seeds, named after the anchor: a new one may owe its values to lucky seeds, so it begins a new draw."""
        held = repository.anchors(connection, self.policy)
        return {task: next(iter(held.get(task, ())), live) for task in self.sentinels.tasks}

    def _kept(
        self, connection: Connection, version: int, draws: Mapping[str, int], tasks: Collection[str] | None = None
    ) -> dict[int, SentinelAnswer] | None:
        """By place: the stored answers of a version to some tasks (None: all) in these draws; None if one is missing."""
        wanted = [draws[item.task] if tasks is None or item.task in tasks else -1 for item in self.sentinels.items]
        found = repository.read_answers(connection, self.policy, self.sentinels.hash, version, wanted)
        return found if all(place in found or draw < 0 for place, draw in enumerate(wanted)) else None

    def _answers_of(
        self, version: int, stop: threading.Event, draws: Mapping[str, int], tasks: Collection[str] | None = None
    ) -> dict[int, SentinelAnswer]:
        """By place: the answers of a version to some tasks (None: all), from the database, or asked and stored.

        A version can be asked only while it is resident.
        """
        with self.database.snapshot() as connection:
            held = self._kept(connection, version, draws, tasks)
        if held:
            return held
        answers = self.sentinel_client.ask(self.sentinels, version, stop, draws)
        of_items = [draws[item.task] for item in self.sentinels.items]
        with self.database.transaction() as connection:
            repository.keep_answers(connection, self.policy, self.sentinels.hash, version, answers, draws=of_items)
        return dict(enumerate(answers))

    def _graded(self, task: str, said: Mapping[int, Mapping[int, SentinelAnswer]]) -> dict[int, tuple[float, ...]]:
        return grade_together(self.grade, self.sentinels, task, said)

    def _details(
        self, version: int, values: Mapping[str, Sequence[float]], comparisons: Sequence[rules.GateComparison]
    ) -> dict[str, Any]:
        tasks = {
            task: {
                "graders": list(self.tasks[task].gate_graders),
                "num": len(found),
                "value": rules.mean(found),
                "comparisons": [item.facts for item in comparisons if item.task == task],
            }
            for task, found in values.items()
        }
        ungated = dict(self.sentinels.ungated)
        return {"version": version, "sentinels": self.sentinels.hash, "tasks": tasks, "ungated": ungated}


def _verdict(
    decision: Decision,
    notes: Sequence[str],
    details: dict[str, Any],
    own: Mapping[str, Sequence[float]],
    values: Mapping[str, Mapping[int, Sequence[float]]],
) -> VersionVerdict:
    first = {item.task: item for item in reversed(decision.comparisons)}
    against = {task: values[task][item.version] for task, item in first.items()}
    proven = dict.fromkeys(decision.proven_on, f"proven better than the anchor before it; {decision.reason}")
    reason = "; ".join([decision.reason, *notes])
    return VersionVerdict(
        details["version"], decision.accepted, reason, _accuracy(own), _accuracy(against), details, proven
    )


def _accuracy(values: Mapping[str, Sequence[float]]) -> float | None:
    """Mean over all sentinels of all tasks; None without any."""
    every = [value for found in values.values() for value in found]
    return rules.mean(every) if every else None


def _version_of(arm: Assignment) -> int:
    if arm.version is None:
        raise Unavailable(f"the arm {arm.arm} was cleared meanwhile")
    return arm.version
