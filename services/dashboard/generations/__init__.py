"""The Generations pages: what was said, and everything that became of it."""
