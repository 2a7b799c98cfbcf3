"""The kinds of verifiers: files of this folder, and what installed packages add. Each is imported when a task names it.

A package adds a kind by an entry point in the group `millrace.verifiers`: the kind's name, and a module that has what a file here has
(`VERSION`, `build`, perhaps `explain`) and `KIND`. `examples/verifiers/` is such a package.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from contracts.errors import InvalidTask

GROUP = "millrace.verifiers"


class Kind(NamedTuple):
    """One kind of verifier. contracts/tasks/gate.py says what each kind proves."""

    purpose: str
    """What an answer needs to pass."""
    is_slow: bool = False
    """It runs in parallel with others, after the fast gates."""


KINDS: dict[str, Kind] = {
    "choice": Kind("the answer picks one letter, that of the reference"),
    "code": Kind("the answer's program gives the expected values, each input in a sandbox of its own", is_slow=True),
    "exact": Kind("the answer is the text of the reference, after a normalisation that the task names"),
    "function": Kind("your own reward function, with trl's signature, by import path", is_slow=True),
    "http": Kind("a reward server: prompts and completions in, rewards out", is_slow=True),
    "json_exact": Kind("the answer equals the JSON of the reference"),
    "json_schema": Kind("the answer is JSON that satisfies a schema"),
    "math": Kind("the boxed answer is worth the same as the reference", is_slow=True),
    "numeric": Kind("the answer commits to one number, that of the reference, within a tolerance"),
    "regex": Kind("a pattern is found in the answer, is the whole of it, or is nowhere in it"),
    "sql": Kind("the answer's query gives the rows of the reference's, on two databases or more", is_slow=True),
    "token_f1": Kind("the share of words that answer and reference have in common, as F1"),
    "tool_call": Kind("the answer calls tools that exist, with arguments that satisfy their schemas"),
}
PACKAGED = {"instruction": "examples.verifiers", "reasoning_gym": "examples.verifiers"}
"""Kinds that Millrace's own packages add."""


def kinds() -> list[str]:
    """The names of all kinds."""
    return sorted({*KINDS, *entry_points(group=GROUP).names})


def load_kind(name: str) -> tuple[Kind, Any]:
    """A kind and its module. Raises InvalidTask: nothing here and no installed package has it, or its package cannot be imported."""
    if name in KINDS:
        return KINDS[name], importlib.import_module(f"rewards.verifiers.{name}")
    for point in entry_points(group=GROUP, name=name):
        try:
            module = point.load()
            kind: Kind = module.KIND
        except Exception as error:  # a package may fail in any way
            raise InvalidTask(f"verifier {name!r} cannot be loaded from {point.value}: {error}") from error
        return kind, module
    if name in PACKAGED:
        raise InvalidTask(
            f"verifier {name!r} is in the package {PACKAGED[name]}, which is not installed: install Millrace again from its "
            "folder, pip install --editable ."
        )
    raise InvalidTask(f"there is no verifier {name!r}; there are {', '.join(kinds())}")
