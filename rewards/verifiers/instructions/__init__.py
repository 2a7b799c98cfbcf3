"""The checks of an answer's form: small pure functions by name, in groups."""

from __future__ import annotations

from rewards.verifiers.instructions import casing, counts, ends, structure, words
from rewards.verifiers.instructions.rule import Instruction

INSTRUCTIONS: dict[str, Instruction] = {
    **counts.INSTRUCTIONS,
    **words.INSTRUCTIONS,
    **casing.INSTRUCTIONS,
    **structure.INSTRUCTIONS,
    **ends.INSTRUCTIONS,
}
