"""`sql`: the answer's query gives the same rows as the reference's, on at least two given databases and on fresh ones.

Rows are compared as a multiset, or in order if the reference orders its rows; columns by position. 1 and 1.0 are equal, because aggregates
return either; the text '1' is not 1. Reals are compared to nine digits. No row equals one row of NULLs. The rows of `fresh` databases are
drawn from the schema for each grading (`database.rows`), by a seed that follows from the sample's key, so that a replay draws the same.
Databases live in memory, in workers with bounded memory; queries may read and call functions, no more.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from contracts.errors import InvalidTask
from contracts.tasks.section import TaskSection
from rewards.killable import NotStarted, Setup, pool_for
from rewards.verifiers.check import Answer, BatchVerifier, Check, Context, after_reasoning, read_config, wrong
from rewards.verifiers.referee import refereed

VERSION = 3

_MEMORY_BYTES = 1 << 30
_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)[^\n`]*\n(.*?)(?:\n?[ \t]*\1|\Z)", re.DOTALL | re.MULTILINE)
_ON_ONE_LINE = re.compile(r"```(?:sql\b)?([^`\n]+)```", re.IGNORECASE)
_NAMED = re.compile(r"\Asql(?:ite)?(?: query)?[ \t]*[:\n]", re.IGNORECASE)
_DIALECTS = ("sql", "postgres", "mysql", "psql")
_GIVEN_SHARE, _FRESH_SHARE = 1 / 4, 1 / 8
"""Shares of the deadline, as processor time for all queries of the reference, and the same again for the answer.

The rest of the deadline is slack for a busy machine.
"""


class SqlConfig(TaskSection):
    """The databases to compare on."""

    databases: tuple[str, ...] = ()
    """SQL scripts, relative to the task file."""
    setup: tuple[str, ...] = ()
    """SQL scripts in place of files: each one is one more database."""
    max_rows: int = Field(default=10_000, ge=1, le=1_000_000)
    """A query that gives more rows is wrong."""
    fresh: int = Field(default=4, ge=0, le=50)
    """The number of databases with rows drawn for each grading. 0: only the given ones, whose rows a policy can memorise."""
    seed: str | None = Field(default=None, min_length=1, max_length=64, pattern=r"^\w+$")
    """A fixed seed for the rows of every grading, as in a score's reason. For tests and replays."""

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
        "query_seconds": context.deadline_seconds * _GIVEN_SHARE / (len(rule.databases) + len(rule.setup)),
        "fresh": rule.fresh,
        "fresh_seconds": context.deadline_seconds * _FRESH_SHARE / max(1, rule.fresh),
    }
    pool = pool_for(Setup("rewards.verifiers.database.run:worker", json.dumps(settings), memory_bytes=_MEMORY_BYTES))
    try:
        pool.check()
    except NotStarted as error:
        param = "databases" if rule.databases else "setup"
        raise InvalidTask(f"a database cannot be built: {error}", param=param) from error
    seed_of = partial(_seed, rule) if rule.fresh else None
    return after_reasoning(refereed(pool, context.deadline_seconds, query_in, seed_of))


def query_in(text: str) -> str | Check:
    """The first block fenced as sql or one of its dialects, else the first without a language, else the whole text.

    A fence may be missing at the end, and semicolons may be there. Linear in any text.
    """
    text = text.strip()
    blocks = [(match[2].lower(), match[3]) for match in _FENCE.finditer(text)]
    named = [block for language, block in blocks if language.startswith(_DIALECTS)]
    bare = [block for language, block in blocks if not language]
    one = _ON_ONE_LINE.fullmatch(text)
    whole = one[1] if one else _NAMED.sub("", text)
    query = [*named, *bare, whole][0].rstrip("; \t\r\n\f\v").strip()
    return query or wrong("no query")


def _seed(rule: SqlConfig, answer: Answer) -> str:
    """The seed of the rows for one answer. A model does not know its sample's key, but a replay does. Without a key it is random."""
    if rule.seed is not None:
        return rule.seed
    return hashlib.sha256(f"sql {answer.key}".encode()).hexdigest()[:16] if answer.key else secrets.token_hex(8)


def _script(name: str, folder: str) -> str:
    path = Path(folder, name)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        hint = "it takes files, relative to the task file; SQL in place goes under `setup`"
        raise InvalidTask(f"{str(path)[:80]!r}: {why}; {hint}", param="databases") from error
