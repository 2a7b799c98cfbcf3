"""Signals in."""
