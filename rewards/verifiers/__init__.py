"""Checks of what was said, one small file per kind."""
