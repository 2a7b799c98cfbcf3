"""Generations a second through join and score."""
