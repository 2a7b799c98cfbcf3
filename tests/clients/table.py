"""The tables of `docs/clients.md`: what each client got, and how the sessions of agents came out. Pure.

In: results as the programs print them, and rows as the log has them. Out: the page. The agents' part is its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from contracts.turns import RowCount

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

AGENTS = "## Sessions of agents"
AGENTS_HEAD = f"""\
{AGENTS}

Unmodified harnesses with real tools, each given a URL and the key of a session. The policy here is a script, so that the calls are known:
two questions with six and three calls of a tool, eleven requests in all; mini-swe-agent has one task with six commands in a shell. The
template is Qwen3's, and the policy writes its calls with other spaces than the template would. Rows, breaks and tokens are counted from the `turn`s in the log
([agents](agents.md)). A linear session is one row; a break is a request that does not go on from the one before, and its cause.
"Saved" are the tokens that need not be computed, against one row per request. With reasoning, Qwen3's template removes the earlier reasoning at
the second question: that is the one break.
"""


class Result(NamedTuple):
    """What came of one feature of one client."""

    feature: str
    result: str
    message: str = ""


class Outcome(NamedTuple):
    """How one harness' sessions came out, without and with reasoning."""

    name: str
    api: str
    plain: RowCount
    reasoned: RowCount


def agents(outcomes: Sequence[Outcome]) -> str:
    """The part of the page about agents."""
    head = ["Harness", "API", "Requests", *("Rows", "Breaks", "Saved", "Rows, with reasoning", "Breaks", "Saved")]
    rows = [
        [one.name, one.api, str(one.plain.calls), *_told(one.plain), *_told(one.reasoned)] for one in outcomes
    ]  # fmt: skip
    return f"{AGENTS_HEAD}\n" + "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def with_agents(before: str, part: str) -> str:
    """The page with another part about agents."""
    return f"{before.partition(AGENTS)[0].rstrip()}\n\n{part}"


def _told(count: RowCount) -> list[str]:
    breaks = [f"{num} `{branch}`" for branch, num in sorted(count.branches.items()) if branch != "first"]
    return [str(count.rows), ", ".join(breaks) or "none", f"{count.saved:.0%}"]


def page(results: Mapping[str, Sequence[Result]]) -> str:
    """The part of the page about clients. `results`: by client with its version, in the order of the columns of the overview."""
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
