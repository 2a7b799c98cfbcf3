"""The table of `docs/clients.md`: what each client got. Pure.

In: results as the programs print them. Out: the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

HEAD = """\
# Clients

This table is written by `make clients`: unmodified clients, each in an environment of its own, against a started Millrace with our engine and
a tiny policy that knows a few conversations by heart (`tests/clients`). A feature works, or the server refuses it by name: HTTP status,
code, and the field in `param`. Nothing is ignored silently and nothing ends in a 5xx. "Not sent" means that the client itself has no such
request. `deploy/clients` builds the environments from PyPI and npm; `tests/clients/environments` pins every package.

What the columns do not say:

- the 429 of a key with too many requests is an exception of the client, and its own retry then succeeds (`retry-after-ms`);
- a stream that the client leaves ends at the engine too, and the next request is answered;
- litellm's proxy runs in front of Millrace, and the openai SDK talks to it: some refusals are then litellm's own.
"""


class Result(NamedTuple):
    """What came of one feature of one client."""

    feature: str
    result: str
    message: str = ""


def page(results: Mapping[str, Sequence[Result]]) -> str:
    """The whole page. `results`: by client with its version, in the order of the columns of the overview."""
    parts = [HEAD, _overview(results)]
    for client, found in results.items():
        rows = "\n".join(f"| {result.feature} | {_shown(result.result)} |" for result in found)
        parts.append(f"## {client}\n\n| Feature | Result |\n|---|---|\n{rows}\n")
    return "\n".join(parts)


def _overview(results: Mapping[str, Sequence[Result]]) -> str:
    rows = [
        f"| {client} | {_count(found, 'works')} | {_count(found, 'refused')} |" for client, found in results.items()
    ]
    return "| Client | Features that work | Refused by name |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _count(found: Sequence[Result], begin: str) -> int:
    return sum(result.result.startswith(begin) and "not sent" not in result.result for result in found)


def _shown(result: str) -> str:
    if result.startswith("refused: not sent"):
        return "not sent"
    kind, colon, details = result.partition(": ")
    if kind != "refused" or not colon:
        return result
    status, *names = details.split()
    return f"refused: {status} {' '.join(f'`{name}`' for name in names)}".rstrip()
