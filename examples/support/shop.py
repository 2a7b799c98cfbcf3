"""The shop behind the tools: its orders, and what each tool does. Pure.

In: the name of a tool and its arguments. Out: what the tool says. What was refunded or replaced is remembered: that is what a customer
notices in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from examples.support.cases import SupportCase

ToolResult = dict[str, Any]


class ToolRefused(Exception):
    """The tool cannot do that; the text says why."""


class _Tool(NamedTuple):
    """A tool, and the one argument that it takes: the name of a field of a case."""

    argument: str
    description: str
    use: Callable[[SupportCase], ToolResult]


class Shop:
    """The orders of all customers who are being served. Belongs to one thread."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], SupportCase] = {}
        self._done: dict[str, list[str]] = {}

    def open(self, case: SupportCase) -> None:
        """Take the order of a customer."""
        self._done[case.order] = []
        for argument in ("order", "item", "parcel"):
            self._held[argument, getattr(case, argument)] = case

    def close(self, case: SupportCase) -> tuple[str, ...]:
        """Forget the order; returns what was done about it: refund, replacement."""
        for argument in ("order", "item", "parcel"):
            del self._held[argument, getattr(case, argument)]
        return tuple(self._done.pop(case.order))

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Use a tool.

        Raises:
            ToolRefused: there is no such tool, it takes another argument, or it cannot do that.
        """
        tool = TOOLS.get(name)
        if tool is None:
            raise ToolRefused("no such tool")
        if set(arguments) != {tool.argument}:
            raise ToolRefused(f"it takes: {tool.argument}")
        case = self._held.get((tool.argument, str(arguments[tool.argument])))
        if case is None:
            raise ToolRefused(f"no such {tool.argument}")
        result = tool.use(case)
        if "done" in result:
            self._done[case.order].append(result["done"])
        return result


def is_solved(case: SupportCase, done: tuple[str, ...], reply: str) -> bool:
    """What the customer finds in the end: the right thing was done, once, and nothing else; and the reply is right."""
    return done == ((case.wants,) if case.wants else ()) and reply == case.reply


def _replacement(case: SupportCase) -> ToolResult:
    if not case.stock:
        raise ToolRefused("out of stock")
    return {"done": "replacement"}


TOOLS: dict[str, _Tool] = {
    "lookup_order": _Tool("order", "What was ordered, and when it came.",
                          lambda case: {"item": case.item, "days": case.days, "parcel": case.parcel}),
    "refund_policy": _Tool("item", "Whether an item may still be returned.",
                           lambda case: {"return": "open" if case.days <= case.returnable else "over"}),
    "check_stock": _Tool("item", "How many of an item there are.", lambda case: {"stock": case.stock}),
    "track_parcel": _Tool("parcel", "Where a parcel is.", lambda case: {"place": case.place}),
    "issue_refund": _Tool("order", "Pay the price of an order back.", lambda _: {"done": "refund"}),
    "send_replacement": _Tool("order", "Send the item of an order once more.", _replacement),
}  # fmt: skip
OFFERED: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": tool.description,
            "parameters": {
                "type": "object",
                "properties": {tool.argument: {"type": "string"}},
                "required": [tool.argument],
            },
        },
    }
    for name, tool in TOOLS.items()
]
"""The tools as a request offers them."""
