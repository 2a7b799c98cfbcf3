"""`reasoning_gym`: the answer solves a procedural task of reasoning-gym, by the task's own scorer.

`metadata.reference` is JSON: `{"index": 7}`, with `seed` and `size` if they differ from the config's, or a whole entry
(`question`, `answer`, `metadata`). `python -m examples.verifiers.reasoning_gym DATASET --size 100 --seed 1` prints prompts
with these references, one JSON object per line: sentinels that a model cannot have memorised, or prompts for training.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from contracts.errors import InvalidTask
from contracts.tasks.section import TaskSection
from rewards.killable import NotStarted, Setup, pool_for
from rewards.verifiers.check import BatchVerifier, Check, Context, after_reasoning, read_config, wrong
from rewards.verifiers.referee import refereed
from rewards.verifiers.registry import Kind

VERSION = 2
KIND = Kind("the answer solves a task of reasoning-gym, by its own scorer", is_slow=True)

_MEMORY_BYTES = 4 << 30
_MAX_ANSWER = 20_000


class ReasoningGymConfig(TaskSection):
    """The dataset and how to read answers."""

    dataset: str
    """Its name in reasoning-gym, for example `leg_counting`."""
    seed: int = 0
    """The seed of the entries that a reference names by index."""
    size: int = Field(default=500, ge=1)
    """The number of entries."""
    options: dict[str, Any] = Field(default_factory=dict)
    """The dataset's own settings."""
    tag: str = Field(default="answer", pattern=r"^[a-z_]*$")
    """The tag around the answer; the last one counts. If empty, the whole text is the answer."""


def build(config: Mapping[str, Any], context: Context = Context()) -> BatchVerifier:  # noqa: B008 immutable
    """See `Builder`."""
    rule = read_config(ReasoningGymConfig, config)
    _require()
    settings = rule.model_dump_json(include={"dataset", "seed", "size", "options"})
    pool = pool_for(Setup("examples.verifiers.reasoning_gym_score:worker", settings, memory_bytes=_MEMORY_BYTES))
    try:
        pool.check()
    except NotStarted as error:
        raise InvalidTask(f"dataset {rule.dataset!r} cannot be loaded: {error}", param="dataset") from error
    return after_reasoning(refereed(pool, context.deadline_seconds, lambda text: answer_in(text, rule.tag)))


def answer_in(text: str, tag: str) -> str | Check:
    """The content of the last tag, or a check that says why there is no answer."""
    answer = text
    if tag:
        before, opening, rest = text.rpartition(f"<{tag}>")
        del before
        answer, closing, _ = rest.partition(f"</{tag}>")
        if not opening or not closing:
            return wrong(f"no <{tag}> answer")
    if len(answer) > _MAX_ANSWER:
        return wrong(f"the answer is longer than {_MAX_ANSWER} characters")
    return answer.strip()


def prompts(
    dataset: str, size: int, seed: int, options: Mapping[str, Any] | None = None, tag: str = "answer"
) -> Iterator[dict[str, Any]]:
    """Prompts with references: `{"messages": [...], "reference": "..."}`, the form of a sentinel.

    Raises:
        InvalidTask: reasoning-gym is not installed, or has no such dataset.
    """
    _require()
    import reasoning_gym  # type: ignore[import-untyped]  # noqa: PLC0415 an optional extra

    try:
        entries = reasoning_gym.create_dataset(dataset, seed=seed, size=size, **(options or {}))
    except Exception as error:
        raise InvalidTask(f"dataset {dataset!r} cannot be loaded: {error}", param="dataset") from error
    system = (
        f"Think, then give your final answer as <{tag}>...</{tag}>." if tag else "Give the answer and nothing else."
    )
    for index in range(size):
        yield {
            "messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": entries[index]["question"]},
            ],
            "reference": json.dumps({"dataset": dataset, "index": index, "seed": seed, "size": size}),
        }


def main() -> None:
    """Print prompts, one JSON object per line."""
    parser = argparse.ArgumentParser(prog="python -m examples.verifiers.reasoning_gym", description=prompts.__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tag", default="answer")
    given = parser.parse_args()
    try:
        for item in prompts(given.dataset, given.size, given.seed, tag=given.tag):
            sys.stdout.write(json.dumps(item) + "\n")
    except InvalidTask as error:
        parser.error(error.message)


def _require() -> None:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise InvalidTask("reasoning-gym is not installed; pip install 'millrace[reasoning]'", param="dataset")


if __name__ == "__main__":
    main()
