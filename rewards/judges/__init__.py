"""Judges: models that score answers, what they may cost, and whether their scores may decide."""
