"""Scores cases that a person wrote, with the same graders as the reward worker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from contracts.answers.reasoning import without_reasoning
from contracts.errors import InvalidRequest
from contracts.files import read_small
from contracts.records import Score
from contracts.tasks import Task
from contracts.tasks.section import Source
from rewards.judges.budget import MemoryStore
from rewards.judges.registry import judges_of
from rewards.panel import Panel
from rewards.rubric import RewardVerdict, combine
from rewards.verifiers.check import Answer, BadReference, Explain
from rewards.verifiers.registry import load_kind

_MAX_THREADS = 32
_MAX_EXPLAINED = 2000


class ManualScorer:
    """The graders of one task, ready for cases. A context manager: it owns threads."""

    def __init__(self, task: Task) -> None:
        """Raises InvalidTask."""
        self.task = task
        # Verdicts and costs of judges are forgotten afterwards: manual scoring does not use up the worker's budget.
        self.panel = Panel(task, judges_of(task, MemoryStore()))
        self._pool = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="grader")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def grade(self, answers: Sequence[Answer]) -> list[tuple[tuple[Score, ...], RewardVerdict]]:
        """The scores of each answer, and the verdict if no user said anything."""
        # Fast graders run one case at a time, so that `seconds` are measured for each case.
        batches = [answers] if self.panel.is_slow else [[answer] for answer in answers]
        rows = [scores for batch in batches for scores in self.panel.grade(batch, self._pool)]
        return [(scores, combine(self.task, scores, [])) for scores in rows]


def explained(kind: str, answer: Answer, config: Mapping[str, Any]) -> dict[str, str] | str:
    """What a verifier parses in the answer and the reference, by name, each cut to 2,000 characters; a text if it does not say."""
    explain: Explain | None = getattr(load_kind(kind)[1], "explain", None)
    if explain is None:
        return f"{kind} explains nothing"
    spoken = without_reasoning(answer.text)
    if spoken is None:
        return {"answer": "its reasoning is never closed"}
    try:
        found = explain(answer._replace(text=spoken), config)
    except BadReference as error:
        found = {"reference": str(error)}
    return {
        name: text if len(text) <= _MAX_EXPLAINED else f"{text[:_MAX_EXPLAINED]} ..." for name, text in found.items()
    }


def task_of_verifier(kind: str, config: Mapping[str, Any], deadline_seconds: float, file: Path | None) -> Task:
    """A task with one verifier and nothing else. A mistake in its config is named by line if it came from a file."""
    rule = {"name": kind, "kind": kind, "role": "component", "config": config, "deadline_seconds": deadline_seconds}
    task = Task.model_validate({"name": "score", "signals": {"none": {"type": "text"}}, "verifiers": [rule]})
    if file is not None:
        task._source = Source(file, read_small(file).decode())  # noqa: SLF001 not a field of the file, but where it came from
    return task


def answer_of_case(case: object) -> Answer:
    """Convert a case to the answer that graders see. Raises InvalidRequest: a field is missing or has the wrong type."""
    if not isinstance(case, dict):
        raise InvalidRequest("a case is a JSON object with prompt, completion and, if there is one, reference")
    completion = case.get("completion")
    if not isinstance(completion, str):
        raise InvalidRequest(f"`completion` must be the text of the answer, not {_kind(case, 'completion')}")
    metadata = case.get("metadata", {})
    if not isinstance(metadata, dict):
        raise InvalidRequest(f"`metadata` must be an object, not {_kind(case, 'metadata')}")
    texts = {str(name): _text(value) for name, value in metadata.items()}
    if case.get("reference") is not None:
        texts["reference"] = _text(case["reference"])
    return Answer(text=completion, metadata=texts, messages=_messages(case))


def _messages(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    prompt = case.get("prompt", "")
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}] if prompt else []
    if isinstance(prompt, list) and all(isinstance(message, dict) and "role" in message for message in prompt):
        return prompt
    raise InvalidRequest(
        f"`prompt` must be a text or a list of messages with role and content, not {_kind(case, 'prompt')}"
    )


def _kind(case: Mapping[str, Any], name: str) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(case[name]), "a number") if name in case else "nothing"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
