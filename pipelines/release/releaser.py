"""Judges candidates: gate, then live, or back.

In: the arm `candidate` of the assignments. Out: a stored verdict, and `live` moved to what was accepted; after several
refusals in a row the arm `training` sends the trainer back. Waits: for a candidate that has no verdict.

A fault of ours (a grader, the engine, the database, a mistake of this code) is no verdict: nothing is stored, the process is not
ready and says why, the candidate's age rises in the metrics, and it is judged again, ever less often.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy import Connection

from contracts import assignments, revocations
from contracts.assignments import CANDIDATE, LIVE, MOVED, Assignment
from contracts.errors import InvalidSettings, MillraceError, Unavailable
from contracts.gating import Grade, SentinelFile
from contracts.tasks import Task
from pipelines.release import repository, rules
from pipelines.release.asking import Answer, Asker, BadVersion
from pipelines.release.grading import grade_together
from pipelines.release.repository import Judged
from pipelines.release.rules import ANCHOR, Decision, Question
from pipelines.release.settings import ReleaseSettings
from runtime.database import Database
from runtime.metrics import CANDIDATE_AGE_SECONDS, LIVE_VERSION, NO_VERDICTS, VERDICTS
from runtime.operations import step_done, trouble
from runtime.replicas import Bell

_LOOK_SECONDS, _RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.2, 1.0, 30.0

log = structlog.get_logger()


class Releaser:
    """One per policy. `tasks`: of the home; `grade`: their graders; `clock`: UTC epoch seconds."""

    def __init__(
        self,
        database: Database,
        asker: Asker,
        sentinels: SentinelFile,
        grade: Grade,
        *,
        tasks: Mapping[str, Task],
        policy: str,
        settings: ReleaseSettings,
        bell: Bell,
        each_look: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._asker = asker
        self._sentinels = sentinels
        self._grade = grade
        self._tasks = tasks
        self._policy = policy
        self._settings = settings
        self._bell = bell
        self._each_look = each_look
        self._since: float | None = None
        # Asked for at each scrape: it rises also while a look hangs.
        CANDIDATE_AGE_SECONDS.set_function(lambda: max(0.0, clock() - self._since) if self._since is not None else 0.0)

    def run(self, stop: threading.Event) -> None:
        """Judge until `stop` is set.

        Raises:
            InvalidSettings: the endpoint refuses a sentinel for what it says.
        """
        num_failures = 0
        while not stop.is_set():
            try:
                self._each_look()
                self.look(stop)
            except InvalidSettings:
                raise
            except Exception as error:  # noqa: BLE001 whatever broke here is ours: it must not become a verdict, nor end the gate
                if stop.is_set():
                    return
                num_failures += 1
                self._failed(error, num_failures)
                stop.wait(min(_LONGEST_RETRY_SECONDS, _RETRY_SECONDS * 2.0 ** min(num_failures - 1, 10)))
                continue
            num_failures = 0
            trouble("gate", None)
            step_done()  # not after a failure: a gate that fails in a loop is not healthy
            stop.wait(_LOOK_SECONDS)

    def look(self, stop: threading.Event) -> bool:
        """Judge what waits: the live version first if nobody did, then the candidate; False if nothing waits."""
        with self._database.snapshot() as connection:
            arms = assignments.read(connection, self._policy)
            self._since = repository.candidate_since(connection, self._policy)
            revoked = revocations.read(connection, self._policy)
            live, candidate = arms.get(LIVE), arms.get(CANDIDATE)
            if live is None or live.version is None:
                return False
            is_judged = repository.is_judged(connection, self._policy, self._sentinels.hash, live.version)
            draws = self._draws(connection, live.version)
            is_known = self._is_kept(connection, live.version, draws)
        LIVE_VERSION.set(live.version)
        if candidate is not None and candidate.version in revoked:
            why = revoked[candidate.version].reason
            self._refuse(candidate, live, f"v{candidate.version} was revoked and never comes back: {why}", revoked=True)
        elif not is_judged:
            self._judge_live(live.version, stop)
            return True
        else:
            if not is_known:  # it is resident now, and may not be once a candidate asks for the comparison
                self._answers_of(live.version, stop, draws)
            if candidate is None or candidate.version is None:
                return False
            self._judge(candidate, live, stop, is_live_revoked=live.version in revoked)
        self._since = None
        return True

    def _judge_live(self, version: int, stop: threading.Event) -> None:
        """Measure the live version, which was never a candidate here. The first one measured is the first anchor."""
        with self._database.snapshot() as connection:
            draws = self._draws(connection, version)
        answers = self._answers_of(version, stop, draws)
        graded = self._graded({task: {version: answers} for task in self._sentinels.tasks})
        values = {task: found[version] for task, found in graded.items()}
        says = [f"{task} {rules.mean(found):.3f}" for task, found in values.items()]
        reason = "; ".join(says) or rules.decide((), version, self._sentinels.ungated).reason
        judged = Judged(version, True, reason, _accuracy(values), None, self._details(version, values, ()), {})
        with self._database.transaction() as connection:
            repository.store_live(connection, self._policy, judged)
            held = repository.anchors(connection, self._policy)
            if version not in revocations.read(connection, self._policy):
                for task in self._sentinels.tasks:
                    if task not in held:
                        repository.set_anchor(connection, self._policy, task, version, "the first judged version")
        log.info("measured", version=version, reason=reason)

    def _judge(self, candidate: Assignment, live: Assignment, stop: threading.Event, *, is_live_revoked: bool) -> None:
        version = _version_of(candidate)
        references, notes = self._references(None if is_live_revoked else _version_of(live))
        with self._database.snapshot() as connection:
            draws = self._draws(connection, _version_of(live))
        try:
            mine = self._answers_of(version, stop, draws)
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
                if not said[number].keys() >= set(self._sentinels.places_of(task)):
                    said[number] = {**said[number], **self._answers_of(number, stop, draws, (task,))}
        values = self._graded(
            {
                task: {number: said[number] for number in (version, *roles.values())}
                for task, roles in references.items()
            }
        )
        questions = [
            Question(task, self._tasks[task].gate_graders, self._tasks[task].gate.margin, roles, values[task])
            for task, roles in references.items()
        ]
        decision = rules.decide(questions, version, self._sentinels.ungated)
        self._store(
            candidate, live, _judged(version, decision, notes, self._details_of(version, values, decision), values)
        )

    def _refuse(self, candidate: Assignment, live: Assignment, reason: str, **facts: object) -> None:
        """By name, without a comparison."""
        version = _version_of(candidate)
        details = {**self._details(version, {}, ()), **facts}
        self._store(candidate, live, Judged(version, False, reason, None, None, details, {}))

    def _store(self, candidate: Assignment, live: Assignment, judged: Judged) -> None:
        compared = [item["version"] for task in judged.details["tasks"].values() for item in task["comparisons"]]
        with self._database.transaction() as connection:
            repository.store(
                connection,
                self._policy,
                candidate,
                judged,
                live=live,
                references=compared,
                refusals_before_rollback=self._settings.refusals_before_rollback,
            )
        self._bell.ring(MOVED)
        VERDICTS.labels(str(judged.accepted).lower()).inc()
        log.info("judged", version=judged.version, accepted=judged.accepted, reason=judged.reason)

    def _references(self, live: int | None) -> tuple[dict[str, dict[str, int]], list[str]]:
        """By task: whom the candidate is compared with, and what there is to say about it. `live`: None if revoked."""
        found, notes = dict[str, dict[str, int]](), list[str]()
        with self._database.transaction() as connection:
            anchors = repository.anchors(connection, self._policy)
            for task in self._sentinels.tasks:
                anchor = next(iter(anchors.get(task, ())), None)
                if (
                    anchor is not None
                    and anchor != live
                    and not self._is_kept(connection, anchor, {task: anchor}, (task,))
                ):
                    note = f"v{anchor} was the anchor of {task}; it is not resident and never answered these sentinels"
                    log.warning("anchor replaced", task=task, version=anchor, by=live, reason=note)
                    notes.append(note if live is None else f"{note}: v{live} is from now on")
                    anchor = None
                if anchor is None and live is not None:
                    repository.set_anchor(connection, self._policy, task, live, "; ".join(notes) or "no other was left")
                roles = {rules.LIVE: live} if live is not None else {}
                found[task] = roles if anchor is None else {**roles, ANCHOR: anchor}
                if not found[task]:
                    raise Unavailable(
                        f"the live version was revoked, and {task} has no anchor that was not: roll back or promote another"
                    )
        return found, notes

    def _draws(self, connection: Connection, live: int) -> dict[str, int]:
        """By task: whose seeds everybody answers with. A new anchor begins a new draw, so that its luck is not held against others."""
        held = repository.anchors(connection, self._policy)
        return {task: next(iter(held.get(task, ())), live) for task in self._sentinels.tasks}

    def _kept(
        self, connection: Connection, version: int, draws: Mapping[str, int], tasks: Collection[str]
    ) -> dict[int, Answer]:
        """By place: what is kept of a version's answers to these tasks, in these draws."""
        wanted = [draws.get(item.task, -1) if item.task in tasks else -1 for item in self._sentinels.items]
        return repository.read_answers(connection, self._policy, self._sentinels.hash, version, wanted)

    def _is_kept(
        self, connection: Connection, version: int, draws: Mapping[str, int], tasks: Collection[str] | None = None
    ) -> bool:
        tasks = self._sentinels.tasks if tasks is None else tasks
        wanted = {place for task in tasks for place in self._sentinels.places_of(task)}
        return self._kept(connection, version, draws, tasks).keys() >= wanted

    def _answers_of(
        self, version: int, stop: threading.Event, draws: Mapping[str, int], tasks: Collection[str] | None = None
    ) -> dict[int, Answer]:
        """By place, for all tasks or some. As they are kept; else the version is asked everything, and it is kept.

        A version that has to be asked has to be resident.
        """
        tasks = self._sentinels.tasks if tasks is None else tasks
        wanted = {place for task in tasks for place in self._sentinels.places_of(task)}
        with self._database.snapshot() as connection:
            held = self._kept(connection, version, draws, tasks)
        if wanted and held.keys() >= wanted:
            return held
        answers = self._asker.ask(self._sentinels, version, stop, draws)
        of_items = [draws[item.task] for item in self._sentinels.items]
        with self._database.transaction() as connection:
            repository.keep_answers(connection, self._policy, self._sentinels.hash, version, answers, draws=of_items)
        return dict(enumerate(answers))

    def _graded(
        self, said: Mapping[str, Mapping[int, Mapping[int, Answer]]]
    ) -> dict[str, dict[int, tuple[float, ...]]]:
        """By task and version."""
        shuffler = random.Random()  # noqa: S311 an order that graders cannot know, not a secret
        return {
            task: grade_together(self._grade, self._sentinels, task, answers, shuffler)
            for task, answers in said.items()
        }

    def _details_of(
        self, version: int, values: Mapping[str, Mapping[int, Sequence[float]]], decision: Decision
    ) -> dict[str, Any]:
        return self._details(version, {task: found[version] for task, found in values.items()}, decision.comparisons)

    def _details(
        self, version: int, values: Mapping[str, Sequence[float]], comparisons: Sequence[rules.Comparison]
    ) -> dict[str, Any]:
        """What the verdict rests on, by task."""
        tasks = {
            task: {
                "graders": list(self._tasks[task].gate_graders),
                "num": len(found),
                "value": rules.mean(found),
                "comparisons": [item.facts for item in comparisons if item.task == task],
            }
            for task, found in values.items()
        }
        return {
            "version": version,
            "sentinels": self._sentinels.hash,
            "tasks": tasks,
            "ungated": dict(self._sentinels.ungated),
        }

    def _failed(self, error: Exception, num_failures: int) -> None:
        NO_VERDICTS.inc()
        reason = error.message if isinstance(error, MillraceError) else f"{type(error).__name__}: {error}"
        trouble("gate", f"no verdict, {num_failures} times in a row: {reason}")
        # With a traceback where nobody expected it.
        log.warning("no verdict", reason=reason, times=num_failures, exc_info=not isinstance(error, MillraceError))


def _judged(
    version: int,
    decision: Decision,
    notes: Sequence[str],
    details: dict[str, Any],
    values: Mapping[str, Mapping[int, Sequence[float]]],
) -> Judged:
    mine = {task: found[version] for task, found in values.items()}
    first = {item.task: item for item in reversed(decision.comparisons)}
    against = {task: values[task][item.version] for task, item in first.items()}
    proven = dict.fromkeys(decision.proven_on, f"proven better than the anchor before it; {decision.reason}")
    reason = "; ".join([decision.reason, *notes])
    return Judged(version, decision.accepted, reason, _accuracy(mine), _accuracy(against), details, proven)


def _accuracy(values: Mapping[str, Sequence[float]]) -> float | None:
    """Mean over all sentinels of all tasks."""
    every = [value for found in values.values() for value in found]
    return rules.mean(every) if every else None


def _version_of(arm: Assignment) -> int:
    if arm.version is None:
        raise Unavailable(f"the arm {arm.arm} was cleared meanwhile")
    return arm.version
