"""`function`: the user's own reward function, by import path, with trl's signature `reward_func(prompts, completions, **columns)`.

Any reward function that works in trl's GRPOTrainer works here unchanged, `async` ones too. It runs in worker processes, so that it may
hang, crash or print. An invalid result counts as our fault; one number never counts for several answers. If a batch raises, hangs or
crashes, its answers are tried one by one. A batch whose result has the wrong shape stays unscored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

from pydantic import Field

from contracts.errors import InvalidTask
from rewards.killable import ItemOutcome, NotStarted, Pool, Setup, pool_for
from rewards.verifiers.check import Answer, BatchVerifier, Check, Context, broken, read_config
from rewards.verifiers.database.columns import ColumnsConfig, checks_of, columns_of, in_batches

VERSION = 2

_ONE_BY_ONE_DEADLINES = 4
"""The most time, in deadlines, for trying the answers of failed batches one by one."""


class FunctionConfig(ColumnsConfig):
    """The function and its process."""

    path: str = Field(pattern=r"^[^:]+:[A-Za-z_][A-Za-z0-9_.]*$")
    """`package.module:function`, or `file.py:function` relative to the task file."""
    memory_megabytes: int | None = Field(default=None, ge=128)
    """The memory limit of its process; no limit by default."""
    start_seconds: float = Field(default=120.0, gt=0, le=600)
    """The time limit for its imports."""


def build(config: Mapping[str, Any], context: Context = Context()) -> BatchVerifier:  # noqa: B008 immutable
    """See `Builder`."""
    rule = read_config(FunctionConfig, config)
    folder = Path(context.folder).resolve()
    file = folder / rule.path.partition(":")[0]
    # A hash of the file, so that a changed file gets new workers. Modules stay as first imported.
    code = hashlib.blake2b(file.read_bytes(), digest_size=8).hexdigest() if file.is_file() else ""
    settings = {"path": rule.path, "folder": str(folder), "code": code}
    memory_bytes = None if rule.memory_megabytes is None else rule.memory_megabytes << 20
    target, told = "rewards.verifiers.function_call:worker", json.dumps(settings, sort_keys=True)
    pool = pool_for(Setup(target, told, memory_bytes=memory_bytes, start_seconds=rule.start_seconds))
    try:
        pool.check()
    except NotStarted as error:
        raise InvalidTask(
            f"path = {rule.path!r} cannot be used: {error}; it is `package.module:function`, installed, or "
            f"`file.py:function`, relative to {folder}",
            param="path",
        ) from error
    return in_batches(rule, partial(_ask, pool, rule, context.deadline_seconds))


def _ask(pool: Pool, rule: FunctionConfig, deadline: float, batches: Sequence[Sequence[Answer]]) -> list[list[Check]]:
    outcomes = pool.run_all([columns_of(batch, rule) for batch in batches], deadline)
    pairs = list(zip(outcomes, batches, strict=True))
    again = [outcome.how not in {"answered", "unstarted"} and len(batch) > 1 for outcome, batch in pairs]
    items = [columns_of([answer], rule) for batch in compress(batches, again) for answer in batch]
    # All single answers share one budget, so that more failed batches do not cost more time.
    later = iter(pool.run_all(items, deadline, budget_seconds=_ONE_BY_ONE_DEADLINES * deadline))
    return [
        [_read(next(later), 1, rule)[0] for _ in batch] if is_again else _read(outcome, len(batch), rule)
        for is_again, (outcome, batch) in zip(again, pairs, strict=True)
    ]


def _read(outcome: ItemOutcome, num_answers: int, rule: FunctionConfig) -> list[Check]:
    if outcome.how != "answered":
        found: list[Check] | str = outcome.reason
    elif isinstance(outcome.value, dict):
        found = f"it answered {outcome.value['kind']} for {num_answers} answers, not a list"
    else:
        found = checks_of(outcome.value, num_answers, rule)
    return found if isinstance(found, list) else [broken(found)] * num_answers
