"""Mirrors the code."""
