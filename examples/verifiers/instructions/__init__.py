"""The checks of an answer's form: small pure functions by name, in groups."""

from __future__ import annotations

from examples.verifiers.instructions import casing, counts, ends, structure, words
from examples.verifiers.instructions.rule import Instruction

INSTRUCTIONS: dict[str, Instruction] = {
    **counts.INSTRUCTIONS,
    **words.INSTRUCTIONS,
    **casing.INSTRUCTIONS,
    **structure.INSTRUCTIONS,
    **ends.INSTRUCTIONS,
}
