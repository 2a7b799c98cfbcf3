"""Judges: models that are asked about an answer, what they may cost, and whether their word counts."""
