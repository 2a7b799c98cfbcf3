"""The gate's own cases: one move each, in the middle of a session without mistakes. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

from examples.support.cases import cases
from examples.support.teacher import ToolStep, moves, play

NUM_SENTINELS = 120


def sentinels() -> Iterator[dict[str, Any]]:
    """Stream sentinels without end, always the same."""
    rng = Random("sentinels")
    for case in cases("sentinel", 0):
        steps, _ = play(case, rng, mistakes=0.0)
        shown = steps[: rng.randrange(len(steps) + 1)]
        messages = [{"role": "user", "content": case.text}, *_messages(shown)]
        yield {"messages": messages, "reference": moves(case, shown)[0][0].written}


def write_sentinels(path: Path, number: int = NUM_SENTINELS) -> Path:
    """Write the first ones as a sentinel file."""
    path.write_text("".join(json.dumps(item) + "\n" for item in islice(sentinels(), number)))
    return path


def _messages(steps: list[ToolStep]) -> Iterator[dict[str, Any]]:
    for number, step in zip(count(), steps, strict=False):
        call = {"name": step.move.tool, "arguments": json.dumps(step.move.arguments)}
        called = {"id": f"call{number}", "type": "function", "function": call}
        yield {"role": "assistant", "content": "", "tool_calls": [called]}
        yield {"role": "tool", "tool_call_id": called["id"], "content": json.dumps(step.result)}
