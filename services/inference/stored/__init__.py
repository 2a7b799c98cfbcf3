"""Stored completions: what was logged, as OpenAI's API lists and shows it."""
