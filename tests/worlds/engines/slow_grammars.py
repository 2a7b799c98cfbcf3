"""Grammars that compile for minutes: one tenant sends many, another one wants what is known and something small, and the first one leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

from services.engine.grammars import Grammars, json_grammar
from tests.worlds.paths import BASE

NUM_SLOW = 6
SLOW = {"type": "string", "allOf": [{"pattern": f"[{chr(97 + place)}0].{{{place}}}$"} for place in range(24)]}
_NUM_IDS, _END_ID = 704, 1
_PATIENCE_SECONDS, _LOOK_SECONDS = 5.0, 0.01
_KNOWN, _SMALL, _LAST = (json_grammar(json.dumps({"type": kind})) for kind in ("boolean", "null", "integer"))


def hold_up() -> str | None:
    """What others had to wait for, or what went on after the attacker had left: the attack."""
    grammars = Grammars(BASE / "tokenizer.json", _NUM_IDS, frozenset({_END_ID}), seconds=10 * _PATIENCE_SECONDS)
    try:
        return asyncio.run(_hold_up(grammars))
    finally:
        grammars.close()


async def _hold_up(grammars: Grammars) -> str | None:
    await grammars.matcher(_KNOWN, tenant="other")
    slow = [json_grammar(json.dumps({"type": "object", "properties": {f"a{name}": SLOW}})) for name in range(NUM_SLOW)]
    attacking = [asyncio.create_task(grammars.matcher(grammar, tenant="attacker")) for grammar in slow]
    await asyncio.sleep(_LOOK_SECONDS)
    problems = [
        await _late("a known schema", grammars.matcher(_KNOWN, tenant="other")),
        await _late("a small new one", grammars.matcher(_SMALL, tenant="other")),
    ]
    if any(task.done() for task in attacking):
        problems.append("the slow ones do not take long: this attack proves nothing")
    for task in attacking:
        task.cancel()
    await asyncio.wait(attacking)
    problems.append(await _late("the attacker's own next one", grammars.matcher(_LAST, tenant="attacker")))
    return "; ".join(problem for problem in problems if problem) or None


async def _late(what: str, wanted: Awaitable[Any]) -> str | None:
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await wanted
    except TimeoutError:
        return f"{what} waits for more than {_PATIENCE_SECONDS:g} s"
    return None
