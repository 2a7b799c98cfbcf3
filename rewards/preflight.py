"""Checks task files before a start, so that a mistake is found then: every verifier, judge and sandbox that they name.

Waits for: one short answer of each judge. They are asked only when a person starts Millrace: for a process that is restarted later,
a judge that is away costs the scores that it would have given, not the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from contracts.tasks import Task
from contracts.tasks.gate import proves
from contracts.tasks.judges import JudgeEndpoint
from contracts.tasks.loading import load_tasks
from rewards.judges.registry import new_http, probe
from rewards.repository import newest_scores
from rewards.sandbox.choose import described, sandbox_named
from rewards.worker import RewardsHandler
from runtime.database import Database

_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 names, nothing is bound
MIN_GRADED, MIN_SHARE = 100, 0.1
"""Below this number of graded answers, or this share of lost ones, nothing is told."""
_NEWEST = 2_000


def check_tasks(paths: tuple[Path, ...], own_url: str, tell: Callable[[str], None]) -> dict[str, Task]:
    """Load the tasks, build every verifier and judge, and ask every judge a short question.

    A judge at `own_url` is not asked, because it cannot answer before the start. `tell` takes lines: which judge is asked, which
    sandbox runs code, and warnings. Raises InvalidTask: the first mistake; with file, line and what to do.
    """
    tasks = load_tasks(paths)
    RewardsHandler(tasks).close()  # builds every verifier and judge, and so checks their settings
    _tell_of_sandboxes(tasks, tell)
    for task in tasks.values():
        warn_of_silence(task, tell)
    _ask_judges(tasks, own_url, tell)
    return tasks


def is_own(url: str, own_url: str) -> bool:
    """Whether both lead to the same port of the same host. All names of this machine count as one host."""
    return _address(url) == _address(own_url)


def _tell_of_sandboxes(tasks: Mapping[str, Task], tell: Callable[[str], None]) -> None:
    for task in tasks.values():
        for index, rule in enumerate(task.verifiers):
            if rule.kind == "code":
                sandbox = sandbox_named(str(rule.config.get("sandbox", "auto")))
                tell(f"{task.where('verifiers', index)}: verifier {rule.name!r} runs code in {described(sandbox)}")


def _ask_judges(tasks: Mapping[str, Task], own_url: str, tell: Callable[[str], None]) -> None:
    def is_skipped(endpoint: JudgeEndpoint) -> bool:
        return is_own(endpoint.url, own_url)

    with new_http() as http:
        for task in tasks.values():
            for index, rule in enumerate(task.judges):
                endpoints = [*rule.endpoints, *([rule.fallback] if rule.fallback else [])]
                if any(map(is_skipped, endpoints)):
                    tell(
                        f"{task.where('judges', index, 'url')}: judge {rule.name!r} is served by this Millrace, which "
                        "cannot answer before its start: it is not asked now"
                    )
                if asked := [endpoint.url for endpoint in endpoints if not is_skipped(endpoint)]:
                    tell(f"asking judge {rule.name!r} of task {task.name!r} at {', '.join(asked)}")
                probe(task, index, http, is_skipped=is_skipped)


def _address(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:  # an invalid port: the request to it reports that
        port = None
    return "localhost" if host in _THIS_MACHINE else host, port


def warn_of_silence(task: Task, tell: Callable[[str], None]) -> None:
    """Warn, by file and line, if the task rewards answers that no user reacted to."""
    if task.silence == "renormalise":
        tell(
            f"{task.where('silence')}: warning: task {task.name!r} pays for answers that nobody reacts to: where users are "
            "silent the graders alone decide, so whatever keeps people from reacting earns more than what they judge; "
            '`silence = "expected"` gives such answers what others said of answers graded alike'
        )


def propose_expected(tasks: Mapping[str, Task], database: Database, tell: Callable[[str], None]) -> None:
    """Tell which share of its graded answers each task loses by leaving silence unlabelled, if the share is large."""
    for task in tasks.values():
        gates = {rule.name for rule in task.grader_rules if rule.role == "gate"}
        deciding = [
            rule for rule in task.grader_rules if rule.name in gates or (rule.role == "component" and rule.weight > 0)
        ]
        if task.silence != "unlabelled" or task.signals_weight <= 0 or not any(map(proves, deciding)):
            continue
        with database.snapshot() as connection:
            known = newest_scores(connection, task.name, _NEWEST)
        rewards = []  # of the answers that every deciding grader scored, and no gate refused
        for row in known:
            scored = {score.name: score.value for score in row.scores if score.status == "scored"}
            if {rule.name for rule in deciding} <= scored.keys() and all(scored[name] != 0.0 for name in gates):
                rewards.append(row.reward)
        num_graded, num_lost = len(rewards), rewards.count(None)
        if num_graded >= MIN_GRADED and num_lost >= MIN_SHARE * num_graded:
            tell(
                f"{task.where('silence')}: of the last {num_graded:,} answers that task {task.name!r} could grade, "
                f"{num_lost / num_graded:.0%} have no reward, because nobody reacted to them; "
                '`silence = "expected"` gives them what users said of similar answers, at reduced weight (docs/rewards.md)'
            )
