"""`millrace score`: a verifier, or all graders of a task, on cases from standard input, one JSON line each.

A case is {"prompt": ..., "completion": ..., "reference": ..., "metadata": {...}}; only the completion is required. Results
are written in the order of the cases, as soon as they are known, so that the command works in a pipe.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import typer
from rich.console import Console
from rich.table import Table

from contracts.errors import InvalidRequest, InvalidSettings, InvalidTask
from contracts.files import read_small
from contracts.records import Score
from contracts.tasks.loading import load_tasks
from rewards.manual_scoring import ManualScorer, answer_of_case, explained, task_of_verifier
from rewards.rubric import RewardVerdict
from rewards.verifiers.check import Answer
from rewards.verifiers.registry import kinds, load_kind

_BATCH = 64
_BAD_LINE = 2
_PROGRESS_EVERY = 1000
_CHUNK_BYTES = 1 << 20
_MAX_DEADLINE = 600.0

Numbered = tuple[int, bytes]


def score(
    *,
    verifier: Annotated[str | None, typer.Option(help="Kind of the verifier; --list shows them.")] = None,
    config: Annotated[Path | None, typer.Option(help="Config of the verifier, a .toml or .json file.")] = None,
    task: Annotated[
        Path | None, typer.Option(help="Task file instead of a verifier: all its graders, and the reward.")
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds for one case, for kinds that can be stopped.")] = 5.0,
    explain: Annotated[bool, typer.Option(help="Add what was parsed in the answer and in the reference.")] = False,
    show: Annotated[bool, typer.Option("--list", help="List the kinds of verifiers.")] = False,
) -> int:
    """Grade answers with a verifier or a task.

    Reads JSON lines with prompt, completion and reference from standard input; writes the scores to standard output.
    """
    if show:
        print_kinds()
        return 0
    return run_score(verifier=verifier, config=config, task=task, deadline=deadline, explain=explain)


def run_score(
    *,
    verifier: str | None = None,
    config: Path | None = None,
    task: Path | None = None,
    deadline: float = 5.0,
    explain: bool = False,
    cases: BufferedIOBase | None = None,
    answers: BinaryIO | None = None,
) -> int:
    """Grade every case, by default from standard input to standard output.

    Returns:
        The exit status: 2 if a line was not a valid case.
    """
    if (verifier is None) == (task is None):
        raise InvalidSettings("say which: --verifier NAME (--list shows them), or --task FILE for all its graders")
    if verifier is not None:
        scorer = _scorer_of_verifier(verifier, config, deadline)
    else:
        if config is not None:
            raise InvalidSettings("--config belongs to --verifier; a task file brings its own configs")
        (only,) = load_tasks((task or Path(),)).values()
        scorer = ManualScorer(only)
    with scorer:
        standard_input = cast("BufferedIOBase", sys.stdin.buffer)
        given, taken = cases or standard_input, answers or sys.stdout.buffer
        return _grade(scorer, given, taken, is_task=task is not None, explain=explain)


def print_kinds() -> None:
    """Print the kinds that `--verifier` accepts."""
    table = Table("verifier", "the answer passes if", "runs")
    for name in kinds():
        try:
            kind, _ = load_kind(name)
        except InvalidTask as error:
            table.add_row(name, error.message, "")
        else:
            table.add_row(name, kind.purpose, "beside others" if kind.is_slow else "")
    Console().print(table)


def read_config_file(path: Path) -> dict[str, Any]:
    """Read a config in TOML or JSON, chosen by the file's suffix. Raises InvalidSettings: it cannot be read."""
    try:
        text = read_small(path).decode()
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:  # both decoders' errors are ValueErrors
        raise InvalidSettings(f"{path}: {error}; --config takes a .toml or .json file") from error
    if not isinstance(found, dict):
        raise InvalidSettings(f"{path}: a config is a table, not a {type(found).__name__}")
    return found


def _scorer_of_verifier(verifier: str, config: Path | None, deadline: float) -> ManualScorer:
    load_kind(verifier)
    if not 0 < deadline <= _MAX_DEADLINE:
        raise InvalidSettings(f"--deadline is in seconds, above 0 and at most {_MAX_DEADLINE:g}, not {deadline:g}")
    if config is not None:
        return ManualScorer(task_of_verifier(verifier, read_config_file(config), deadline, config))
    try:
        return ManualScorer(task_of_verifier(verifier, {}, deadline, None))
    except InvalidTask as error:
        raise InvalidTask(f"{error.message}; --config FILE gives it a config, .toml or .json") from error


def _grade(scorer: ManualScorer, cases: BufferedIOBase, answers: BinaryIO, *, is_task: bool, explain: bool) -> int:
    done = 0
    for batch in _batches(cases):
        read: list[Answer] = []
        mistake = ""
        for number, line in batch:
            try:
                read.append(answer_of_case(_case(line)))
            except InvalidRequest as error:
                mistake = f"line {number}: {error.message}; {done + len(read)} cases before it are answered"
                break
        for answer, (scores, verdict) in zip(read, scorer.grade(read), strict=True):
            found = _of_task(scores, verdict) if is_task else _of_score(scores[0])
            if explain:
                said = {rule.name: explained(rule.kind, answer, rule.config) for rule in scorer.task.verifiers}
                found["explained"] = said if is_task else next(iter(said.values()))
            answers.write((json.dumps(found, ensure_ascii=False) + "\n").encode(errors="replace"))
        answers.flush()
        done += len(read)
        if mistake:
            print(f"millrace: {mistake}; mend or remove it and go on from there", file=sys.stderr)
            return _BAD_LINE
        _report(done, len(read))
    if done >= _PROGRESS_EVERY and sys.stderr.isatty():
        print(f"\r{done} cases", file=sys.stderr)
    return 0


def _case(line: bytes) -> object:
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"not JSON ({error})") from error


def _of_score(score: Score) -> dict[str, Any]:
    return {name: getattr(score, name) for name in ("value", "status", "fault", "reason", "seconds")}


def _of_task(scores: Iterable[Score], verdict: RewardVerdict) -> dict[str, Any]:
    found = [{"name": score.name, **_of_score(score), "grader": score.grader} for score in scores]
    return {**{name: getattr(verdict, name) for name in ("reward", "status", "fault", "reason")}, "scores": found}


def _batches(cases: BufferedIOBase) -> Iterator[list[Numbered]]:
    """Lines that have arrived, at most `_BATCH` at a time: a caller that writes one case and waits gets its result."""
    number, rest, is_open = 0, b"", True
    while is_open:
        try:
            found = cases.read1(_CHUNK_BYTES)  # returns as soon as there is any input
        except OSError as error:
            raise InvalidSettings(f"standard input cannot be read: {error}") from error
        is_open = bool(found)
        *lines, rest = (rest + found).split(b"\n")
        if not is_open:
            lines.append(rest)  # the last line may have no newline
        numbered = [item for item in enumerate(lines, number + 1) if item[1].strip()]
        number += len(lines)
        for start in range(0, len(numbered), _BATCH):
            yield numbered[start : start + _BATCH]


def _report(done: int, added: int) -> None:
    if sys.stderr.isatty() and done // _PROGRESS_EVERY != (done - added) // _PROGRESS_EVERY:
        print(f"\r{done} cases", end="", file=sys.stderr, flush=True)
