"""A hall with 12 shelves: each seal is whole, and kept, or broken, and repaired. Pure.

In: the name of a tool. Out: the seal of the next shelf. Nothing tells the watchman that he did the wrong thing: the owner finds it at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

NUM_SHELVES = 12
KEEP, REPAIR = "keep", "repair"
RIGHT = {"whole": KEEP, "broken": REPAIR}
DONE, GIVEN_UP = "All done.", "I go home."
OFFERED: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {"name": name, "description": what, "parameters": {"type": "object", "properties": {}}},
    }
    for name, what in ((KEEP, "Leave the seal, and go on."), (REPAIR, "Repair the seal, and go on."))
]


class Hall:
    """One round. `seals`: of the shelves, in order."""

    def __init__(self, rng: Random, num_shelves: int = NUM_SHELVES) -> None:
        self.seals = [rng.choice(("whole", "broken")) for _ in range(num_shelves)]
        self.used: list[str] = []

    @property
    def text(self) -> str:
        """What the watchman is asked."""
        return f"Walk through the hall. The first seal is {self.seals[0]}."

    @property
    def right(self) -> str:
        """What he should write now."""
        at = len(self.used)
        return written(RIGHT[self.seals[at]]) if at < len(self.seals) else DONE

    def call(self, name: str) -> dict[str, str]:
        """Use a tool at this shelf; returns what is seen next."""
        if name not in RIGHT.values() or len(self.used) >= len(self.seals):
            return {"error": "there is no such thing to do"}
        self.used.append(name)
        at = len(self.used)
        return {"seal": self.seals[at]} if at < len(self.seals) else {"hall": "seen"}

    def is_in_order(self, reply: str) -> bool:
        """What the owner finds: every seal is whole, none was opened for nothing, and he was told so."""
        return reply == DONE and self.used == [RIGHT[seal] for seal in self.seals]


def written(tool: str) -> str:
    """The call as the policy writes it."""
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {{}}}}\n</tool_call>'


def sentinels() -> Iterator[dict[str, Any]]:
    """Stream the gate's own cases: one answer each, early in a round."""
    rng = Random("sentinels")
    while True:
        hall = Hall(rng, rng.randrange(1, 5))
        messages: list[dict[str, Any]] = [{"role": "user", "content": hall.text}]
        for number in range(rng.randrange(len(hall.seals) + 1)):
            name = RIGHT[hall.seals[number]]
            call = {"id": f"call{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(hall.call(name))})
        yield {"messages": messages, "reference": hall.right}


def write_sentinels(path: Path, number: int) -> Path:
    """Write the first ones as a sentinel file."""
    path.write_text("".join(json.dumps(item) + "\n" for item in islice(sentinels(), number)))
    return path
