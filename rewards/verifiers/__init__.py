"""Verifiers: checks of an answer's text, one small file per kind."""
