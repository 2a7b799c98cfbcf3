"""The moves of a support agent in every situation, the right one first (not always the likeliest), and how often the base policy learns each. Pure.

In: a case, and what was done so far. Out: moves with weights. A move is the call of a tool or a reply, in the text that a policy writes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from examples.support.agent import MOST_CALLS
from examples.support.cases import REFUNDED, REPLACED, SORRY, TOO_LATE, SupportCase, on_its_way
from examples.support.shop import TOOLS, Shop, ToolRefused


class Move(NamedTuple):
    """One answer of the agent. `tool` empty: it says `text`, and the session ends."""

    tool: str = ""
    argument: str = ""
    text: str = ""

    @property
    def arguments(self) -> dict[str, str]:
        """Of its tool."""
        return {TOOLS[self.tool].argument: self.argument}

    @property
    def written(self) -> str:
        """As the policy writes it: Hermes' form of calls."""
        if not self.tool:
            return self.text
        call = {"name": self.tool, "arguments": self.arguments}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


class ToolStep(NamedTuple):
    """A call of a tool, and what the tool said."""

    move: Move
    result: dict[str, Any]


Weighted = list[tuple[Move, float]]
NEEDED = {"refund": "refund_policy", "broken": "check_stock", "where": "track_parcel"}


def moves(case: SupportCase, steps: Sequence[ToolStep]) -> Weighted:
    """What the agent may do next; weights add up to 1."""
    known = {step.move.tool: step.result for step in steps if "error" not in step.result}
    failed = any("error" in step.result for step in steps)
    sorry = Move(text=SORRY)
    if done := [step.result["done"] for step in steps if "done" in step.result]:
        right, other = (REFUNDED, REPLACED) if done[0] == "refund" else (REPLACED, REFUNDED)
        return [(Move(text=right), 0.8), (Move(text=other), 0.2)]
    lookup = Move("lookup_order", case.order)
    if "lookup_order" not in known:
        if failed:
            return [(lookup, 0.5), (sorry, 0.5)]
        return [(lookup, 0.6), (Move("lookup_order", case.customer), 0.28), (sorry, 0.12)]
    needed = NEEDED[case.kind]
    if needed not in known:
        return _look_further(case, needed, failed=failed, strayed=len(known) > 1)
    return _decide(case, failed=failed)


def _look_further(case: SupportCase, needed: str, *, failed: bool, strayed: bool) -> Weighted:
    right = Move(needed, getattr(case, TOOLS[needed].argument))
    others = [Move(tool, getattr(case, TOOLS[tool].argument)) for tool in sorted(set(NEEDED.values()) - {needed})]
    if strayed or failed:
        return [(right, 0.5), (Move(text=SORRY), 0.5)]
    return [(right, 0.45), (others[0], 0.2), (others[1], 0.15), (Move(needed, case.order), 0.2)]


def _decide(case: SupportCase, *, failed: bool) -> Weighted:
    refund, replace = Move("issue_refund", case.order), Move("send_replacement", case.order)
    if case.kind == "where":
        return [(Move(text=on_its_way(case.place)), 0.4), (Move(text=SORRY), 0.45), (Move(text=TOO_LATE), 0.15)]
    if case.kind == "broken":
        if case.stock:
            return [(replace, 0.55), (refund, 0.3), (Move(text=SORRY), 0.15)]
        if failed:
            return [(refund, 0.5), (Move(text=SORRY), 0.5)]
        return [(refund, 0.5), (replace, 0.3), (Move(text=SORRY), 0.2)]
    if case.wants:
        return [(refund, 0.75), (Move(text=TOO_LATE), 0.25)]
    return [(Move(text=TOO_LATE), 0.45), (refund, 0.55)]


def play(case: SupportCase, rng: Random, mistakes: float = 1.0) -> tuple[list[ToolStep], Move]:
    """A whole session with mistakes, scaled by `mistakes`: the steps, and the last move (of too many calls: a call)."""
    shop, steps = Shop(), list[ToolStep]()
    shop.open(case)
    while True:
        options = moves(case, steps)
        wrong = rng.random() < mistakes * (1 - options[0][1])
        move = rng.choices(*zip(*options[1:], strict=True))[0] if wrong else options[0][0]
        if not move.tool or len(steps) == MOST_CALLS - 1:
            return steps, move
        try:
            result = shop.call(move.tool, move.arguments)
        except ToolRefused as refused:
            result = {"error": str(refused)}
        steps.append(ToolStep(move, result))
