"""Versions: cut, published, pruned."""
