"""One reader per format. Each turns a JSON value of an export into rows; some also say which parts of the export belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from commands.imports.formats import jsonl, langfuse, litellm, openai, otel
from commands.imports.repository import ExportLink, Links
from commands.imports.rows import ImportedRow


class Format(NamedTuple):
    """`rows`: the rows of a value; it raises Refused. `links`: what other values may ask for; None: each stands for itself."""

    rows: Callable[[dict[str, Any], Links], Iterator[ImportedRow]]
    links: Callable[[dict[str, Any]], Iterator[ExportLink]] | None = None


FORMATS: Mapping[str, Format] = MappingProxyType({
    "langfuse": Format(langfuse.rows, langfuse.links),
    "openai": Format(openai.rows, openai.links),
    "litellm": Format(litellm.rows),
    "otel": Format(otel.rows, otel.links),
    "jsonl": Format(jsonl.rows),
})  # fmt: skip
