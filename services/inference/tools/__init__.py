"""Reads calls of tools and reasoning from tokens, and forces calls by a grammar. `contracts.answers` knows the families."""
