"""Builds the judges of a task, after checking that their keys are set and that deciding judges were admitted."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from contracts.errors import InvalidTask
from contracts.tasks import Task
from contracts.tasks.judges import JudgeEndpoint, JudgeRule
from rewards.grader import Grader
from rewards.judges.budget import CLOCKS, Clocks, JudgeStore, MemoryStore
from rewards.judges.client import JudgeClient, NoReply
from rewards.judges.judge import Judge
from rewards.judges.prompt import Case, messages_of, new_nonce
from rewards.judges.report import label_of, read_report, shortfalls

_PROBE = [{"role": "user", "content": "What is 2 + 2?"}]


def judges_of(
    task: Task, store: JudgeStore, http: httpx.Client | None = None, *, environ: Mapping[str, str] = os.environ
) -> list[Grader]:
    """The judges of a task. Raises InvalidTask if a key is missing, or a judge that decides was not admitted; with file, line and what to do."""
    if not task.judges:
        return []
    http = http or new_http()
    graders = []
    for index, rule in enumerate(task.judges):
        _check_keys(task, index, environ)
        if rule.role != "watch":
            _check_admission(task, index)
        judge = make_judge(task.name, rule, store, http, environ=environ)
        grader = Grader.of(rule, label_of(rule, task.hash), judge.check_all, is_slow=True)
        graders.append(grader._replace(is_for_imported=rule.imported))
    return graders


def make_judge(
    task: str,
    rule: JudgeRule,
    store: JudgeStore,
    http: httpx.Client,
    *,
    environ: Mapping[str, str] = os.environ,
    clocks: Clocks = CLOCKS,
) -> Judge:
    """Build a judge from its rule, admitted or not."""
    clients = [_client(rule, endpoint, http, environ) for endpoint in rule.endpoints]
    fallback = _client(rule, rule.fallback, http, environ) if rule.fallback else None
    return Judge(task, rule, clients, fallback, store=store, clocks=clocks)


def gate_judge(task: Task, name: str, http: httpx.Client, environ: Mapping[str, str] = os.environ) -> Judge:
    """A judge for the release gate, whatever its role: it sees every answer, and remembers nothing. Raises InvalidTask, like `judges_of`."""
    index = next(place for place, rule in enumerate(task.judges) if rule.name == name)
    _check_keys(task, index, environ)
    _check_admission(task, index)
    # With a budget or a fallback, two versions might be compared by different graders.
    alone = {"sample_share": 1.0, "tokens_per_minute": None, "money_per_day": None, "fallback": None}
    return trial_judge(task, task.judges[index].model_copy(update=alone), http, environ)


def trial_judge(task: Task, rule: JudgeRule, http: httpx.Client, environ: Mapping[str, str] = os.environ) -> Judge:
    """A judge that forgets verdicts and costs afterwards, for measuring."""
    return make_judge(task.name, rule, MemoryStore(), http, environ=environ)


def new_http() -> httpx.Client:
    """The HTTP client of judges. Their rules limit the number of connections, not the client."""
    return httpx.Client(limits=httpx.Limits(max_connections=None, max_keepalive_connections=64))


def probe(
    task: Task,
    index: int,
    http: httpx.Client,
    environ: Mapping[str, str] = os.environ,
    is_skipped: Callable[[JudgeEndpoint], bool] = lambda _: False,
) -> None:
    """Ask each endpoint of a judge a short question, except those skipped. Being overloaded counts as an answer.

    Raises InvalidTask if an endpoint does not answer; with file, line and what to do.
    """
    _check_keys(task, index, environ)
    rule = task.judges[index]
    short = rule.model_copy(update={"max_tokens": 32, "retries": min(1, rule.retries)})
    case = Case(_PROBE, ("4", "5") if rule.protocol == "pairwise" else ("4",))
    for endpoint, place in _places(task, index):
        if is_skipped(endpoint):
            continue
        answer = _client(short, endpoint, http, environ).ask(messages_of(rule, case, new_nonce(case)))
        if isinstance(answer, NoReply) and answer.kind != "busy":
            raise InvalidTask(
                f"{place}: judge {rule.name!r} does not answer at {endpoint.url}: {answer.reason}; start it, mend `url`, "
                "`model` or the key, or take it out of the task"
            )


def _check_keys(task: Task, index: int, environ: Mapping[str, str]) -> None:
    for endpoint, place in _places(task, index, "api_key_env"):
        name = endpoint.api_key_env
        if name is not None and not environ.get(name):
            raise InvalidTask(
                f"{place}: judge {task.judges[index].name!r} takes its key from the environment variable {name}, "
                f"which is not set; export {name}=..."
            )


def _check_admission(task: Task, index: int) -> None:
    rule = task.judges[index]
    path = rule.admission or Path(f"{rule.name}.admission.json")
    command = (
        f"millrace judge admit --task {task.where().rpartition(':')[0] or 'TASK.toml'} --judge {rule.name} "
        f"--labels LABELS.jsonl --out {Path(task.folder) / path}"
    )
    place = task.where("judges", index, "admission")
    if rule.admission is None:
        raise InvalidTask(
            f"{place}: judge {rule.name!r} was not admitted, so its role can only be `watch`, and it cannot gate; measure it "
            f'with: {command}; then write admission = "{path}"'
        )
    try:
        found = shortfalls(rule, read_report(Path(task.folder) / path))
    except ValueError as error:
        found = [str(error)]
    if found:
        raise InvalidTask(
            f"{place}: judge {rule.name!r} may not decide: {'; '.join(found)}. Measure it again with: {command}; or set its "
            "role to `watch`"
        )


def _places(task: Task, index: int, field: str = "url") -> list[tuple[JudgeEndpoint, str]]:
    rule = task.judges[index]
    found = []
    for number, endpoint in enumerate(rule.endpoints):
        found.append((endpoint, task.where("judges", index, *(("members", number) if rule.members else ()), field)))
    return [*found, (rule.fallback, task.where("judges", index, "fallback", field))] if rule.fallback else found


def _client(rule: JudgeRule, endpoint: JudgeEndpoint, http: httpx.Client, environ: Mapping[str, str]) -> JudgeClient:
    key = environ.get(endpoint.api_key_env) if endpoint.api_key_env else None
    return JudgeClient(rule, endpoint, http, key=key)
