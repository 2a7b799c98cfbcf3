"""The kinds of verifiers. Each is a file of this folder with a `VERSION` and a `build`, imported when a task names it."""

from __future__ import annotations

from typing import NamedTuple


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
    "instruction": Kind("the answer has the form that was asked for, by any of some thirty checks"),
    "json_exact": Kind("the answer equals the JSON of the reference"),
    "json_schema": Kind("the answer is JSON that satisfies a schema"),
    "math": Kind("the boxed answer is worth the same as the reference", is_slow=True),
    "numeric": Kind("the answer commits to one number, that of the reference, within a tolerance"),
    "reasoning_gym": Kind("the answer solves a task of reasoning-gym, by its own scorer", is_slow=True),
    "regex": Kind("a pattern is found in the answer, is the whole of it, or is nowhere in it"),
    "sql": Kind("the answer's query gives the rows of the reference's, on two databases or more", is_slow=True),
    "token_f1": Kind("the share of words that answer and reference have in common, as F1"),
    "tool_call": Kind("the answer calls tools that exist, with arguments that satisfy their schemas"),
}
