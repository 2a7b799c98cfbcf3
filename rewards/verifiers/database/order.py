"""Decides which orders of rows are right: rows that the reference's ORDER BY leaves tied may come in any order.

SQLite itself ranks the rows in groups of ties (`dense_rank`), so collations, NULLs and expressions work as in the query. If the query
cannot be parsed, each row is a group of its own: then the order must be exactly the reference's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_COMPOUND = re.compile(r"\b(?:union|intersect|except|values)\b", re.IGNORECASE)
_FROM = re.compile(r"(?<!distinct)\s\bfrom\b", re.IGNORECASE)
_SELECT = re.compile(r"\bselect\b(\s+(?:distinct|all)\b)?", re.IGNORECASE)
_SUFFIX = re.compile(r"(?:\s+(?:collate\s+\w+|asc|desc|nulls\s+(?:first|last)))*\s*\Z", re.IGNORECASE)
_ALIAS = re.compile(r"(?:\s+as\s+|\s+)([\"`\[]?\w+[\"`\]]?)\s*\Z", re.IGNORECASE)
_LIMIT = re.compile(r"limit\s+(?P<first>-?\d+)(?:\s*(?P<by>offset|,)\s*(?P<second>-?\d+))?\s*\Z", re.IGNORECASE)

Rows = tuple[tuple[Any, ...], ...]
Run = Callable[[str], tuple[Rows, tuple[str, ...]] | None]
"""Rows and names of columns of a query; None if the query fails."""


class Groups(NamedTuple):
    """Rows of the reference. `rows` is its result; each of `ties` holds all rows of one rank, including rows that LIMIT cuts off."""

    rows: Rows
    ties: tuple[Rows, ...]
    offset: int = 0

    def fits(self, given: Rows) -> bool:
        """Whether these rows are right too."""
        if is_nothing(given) and is_nothing(self.rows):
            return True
        if len(given) != len(self.rows):
            return False
        place, end = -self.offset, 0
        for tie in self.ties:
            start, end = max(0, place), max(0, place + len(tie))
            if Counter(given[start:end]) - Counter(tie):
                return False
            place += len(tie)
        return end >= len(given)


def is_nothing(rows: Rows) -> bool:
    """Whether there is no row, or one row of NULLs, as from an aggregate over no rows."""
    return not rows or (len(rows) == 1 and all(value is None for value in rows[0]))


class _Query(NamedTuple):
    core: str
    terms: tuple[str, ...]
    limit: str


def outside(query: str) -> str:
    """The query with quotes, comments and parentheses blanked. Its length is the query's."""
    depth, kept = 0, []
    for character in QUOTED.sub(lambda match: _blanked(match.group()), query):
        depth += character == "("
        kept.append(character if not depth else "\x1f")
        depth -= character == ")"
    return "".join(kept)


def _blanked(quoted: str) -> str:
    return (" " if quoted.startswith(("--", "/*")) else "\x1f") * len(quoted)


def groups_of(query: str, rows: Rows, names: tuple[str, ...], run: Run) -> Groups:
    """The rows of a reference in groups of ties. `rows` and `names` are its result."""
    strict = Groups(rows, tuple((row,) for row in rows))
    parts = _taken_apart(query)
    if not parts.terms and not parts.limit:
        return Groups(rows, (rows,))
    if (offset := _offset(parts.limit)) is None:
        return strict
    for ranked in _ranked(parts, names):
        if (found := run(ranked)) is None:
            continue
        in_order = sorted(found[0], key=lambda row: row[-1])
        ties = tuple(tuple(row[:-1] for row in tie) for _, tie in groupby(in_order, key=lambda row: row[-1]))
        if (groups := Groups(rows, ties, offset)).fits(rows):
            return groups
    return strict


def _taken_apart(query: str) -> _Query:
    query = QUOTED.sub(lambda match: " " if match.group().startswith(("--", "/*")) else match.group(), query)
    query = query.strip().rstrip("; \t\n")
    text = outside(query)
    limits = [match.start() for match in re.finditer(r"\blimit\b", text, re.IGNORECASE)]
    limit = limits[-1] if limits else len(query)
    orders = list(re.finditer(r"\border\s+by\b", text[:limit], re.IGNORECASE))
    if not orders:
        return _Query(query[:limit], (), query[limit:])
    order = orders[-1]
    return _Query(query[: order.start()], tuple(_at_commas(query[order.end() : limit])), query[limit:])


def _at_commas(text: str) -> list[str]:
    places = [-1, *(match.start() for match in re.finditer(",", outside(text))), len(text)]
    return [text[start + 1 : end].strip() for start, end in pairwise(places)]


def _offset(limit: str) -> int | None:
    if not limit:
        return 0
    if (match := _LIMIT.match(limit)) is None:
        return None
    number = match["first"] if match["by"] == "," else match["second"]
    return max(0, int(number or 0))


def _ranked(parts: _Query, names: Sequence[str]) -> Iterator[str]:
    """Queries that may give all rows of the reference, without LIMIT, each with its rank as the last column."""
    columns = ", ".join(f"c{place}" for place in range(1, len(names) + 1))
    wrapped = f"WITH millrace({columns}) AS ({parts.core}\n) SELECT *, "
    if not parts.terms:
        yield f"{wrapped}1 FROM millrace"
        return
    by_column = [_by_column(term, names) for term in parts.terms]
    if None not in by_column:
        yield f"{wrapped}dense_rank() OVER (ORDER BY {', '.join(filter(None, by_column))}) FROM millrace"
    text = outside(parts.core)
    select = _SELECT.search(text)
    if select is None or _COMPOUND.search(text) or "distinct" in (select.group(1) or "").lower():
        return
    if source := _FROM.search(text, select.end()):
        items = _at_commas(parts.core[select.end() : source.start()])
        terms = [_by_expression(term, items, len(names)) for term in parts.terms]
        head, tail = parts.core[: source.start()], parts.core[source.start() :]
        yield f"{head}, dense_rank() OVER (ORDER BY {', '.join(terms)}) {tail}"


def _split_suffix(term: str) -> tuple[str, str]:
    suffix = _SUFFIX.search(term)
    place = suffix.start() if suffix else len(term)
    return term[:place].strip(), term[place:]


def _by_column(term: str, names: Sequence[str]) -> str | None:
    """The term with its position or name replaced by a column of the result; None if it names no column."""
    value, suffix = _split_suffix(term)
    if value.isdigit():
        return f"c{value}{suffix}"
    plain = _plain(value)
    places = [place for place, name in enumerate(names, 1) if _plain(name) == plain]
    return f"c{places[0]}{suffix}" if len(places) == 1 else None


def _by_expression(term: str, items: Sequence[str], num_columns: int) -> str:
    """The term with a position or an alias replaced by its expression."""
    value, suffix = _split_suffix(term)
    for place, item in enumerate(items, 1):
        alias = _ALIAS.search(item) if _ALIAS.sub("", item) else None
        is_place = value == str(place) and len(items) == num_columns
        if is_place or (alias and _plain(alias.group(1)) == _plain(value)):
            return f"({item[: alias.start()] if alias else item}){suffix}"
    return term


def _plain(name: str) -> str:
    return re.sub(r"[\s\"`\[\]]", "", name).casefold()
