"""Kinds of verifiers that a package adds. The entry points of the group `millrace.verifiers` in pyproject.toml name them."""
