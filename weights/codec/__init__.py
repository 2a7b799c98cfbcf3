"""Lossless deltas between two versions: contexts, entropy coder, container."""
