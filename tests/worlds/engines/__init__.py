"""Engines of tests: real ones on tiny policies, and such that repeat, break, hold or stall."""
