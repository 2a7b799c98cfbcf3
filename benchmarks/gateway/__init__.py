"""Inference over an engine that costs nothing."""
