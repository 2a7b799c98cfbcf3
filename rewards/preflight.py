"""Checks task files before a start, so that a mistake is found then: every verifier, judge and sandbox that they name.

In: task files. Out: their tasks, or the first mistake. Waits for: one short answer of each judge.

Judges are asked only when a person starts Millrace. A process that is restarted later does not ask: a judge that is away then
costs the scores that it would have given, not the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from contracts.tasks import Task
from contracts.tasks.judges import JudgeEndpoint
from contracts.tasks.loading import load_tasks
from rewards.judges.registry import new_http, probe
from rewards.sandbox.choose import described, sandbox_named
from rewards.silence_warnings import warn_of_silence
from rewards.worker import RewardsHandler

_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})  # noqa: S104 names, nothing is bound


def check_tasks(paths: tuple[Path, ...], own_url: str, tell: Callable[[str], None]) -> dict[str, Task]:
    """Load the tasks, build every verifier and judge, and ask every judge a short question.

    Args:
        paths: of the task files.
        own_url: of this Millrace. A judge there is not asked, because it cannot answer before the start.
        tell: takes lines: which judge is asked (one that does not answer takes as long as its rule allows), which
            sandbox runs code, and warnings.

    Raises:
        InvalidTask: the first mistake, or a judge that does not answer; with file, line and what to do.
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
