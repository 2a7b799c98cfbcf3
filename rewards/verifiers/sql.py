"""`sql`: the answer's query gives the same rows as the reference's, on every one of at least two databases.

Rows are compared as a multiset, or in order if the reference orders its rows; columns by place, not by name. 1 and 1.0
are equal, for aggregates give either; the text '1' is not 1; NULL equals NULL only; reals are compared to nine digits.
A reference that answers the same on every database is refused: a literal would pass for it.

Databases live in memory, in workers with bounded memory; queries may read and call functions, nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from contracts.errors import InvalidTask
from contracts.tasks.part import Part
from rewards.killable import NotStarted, Setup, pool_for
from rewards.killable.referee import refereed
from rewards.verifiers.check import BatchVerifier, Check, Context, read_config, wrong

VERSION = 1

_MEMORY_BYTES = 1 << 30
_FENCE = re.compile(r"```sql[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


class SqlConfig(Part):
    """The databases."""

    databases: tuple[str, ...] = ()
    """SQL scripts, relative to the task file."""
    setup: tuple[str, ...] = ()
    """The same in place: each is the statements of one database more."""
    max_rows: int = Field(default=10_000, ge=1, le=1_000_000)
    """A query that gives more is wrong."""

    @model_validator(mode="after")
    def _falsifiable(self) -> Self:
        if len(self.databases) + len(self.setup) < 2:  # noqa: PLR2004 the point of the message
            raise ValueError(
                "give at least two databases with different rows, in `databases` or `setup`: on one, a wrong query "
                "may be right by chance"
            )
        return self


def build(config: Mapping[str, Any], context: Context = Context()) -> BatchVerifier:  # noqa: B008 immutable
    """See `Builder`."""
    rule = read_config(SqlConfig, config)
    settings = {
        "scripts": [_script(name, context.folder) for name in rule.databases] + list(rule.setup),
        "names": [*rule.databases, *(f"setup {index}" for index in range(len(rule.setup)))],
        "max_rows": rule.max_rows,
        # Of a processor, for each of the reference and the answer: half of the deadline, for a machine that is busy.
        "query_seconds": context.deadline_seconds / (4 * (len(rule.databases) + len(rule.setup))),
    }
    pool = pool_for(Setup("rewards.verifiers.sql_run:worker", json.dumps(settings), memory_bytes=_MEMORY_BYTES))
    try:
        pool.check()
    except NotStarted as error:
        param = "databases" if rule.databases else "setup"
        raise InvalidTask(f"a database cannot be built: {error}", param=param) from error
    return refereed(pool, context.deadline_seconds, query_in)


def query_in(text: str) -> str | Check:
    """The first block fenced as sql, or the whole text."""
    match = _FENCE.search(text)
    query = (match.group(1) if match else text).strip()
    return query or wrong("no query")


def _script(name: str, folder: str) -> str:
    path = Path(folder, name)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = "it takes files, relative to the task file; SQL in place goes under `setup`"
        raise InvalidTask(f"{str(path)[:80]!r}: {why}; {hint}", param="databases") from error
