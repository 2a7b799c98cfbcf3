"""Tokens in, tokens out."""
