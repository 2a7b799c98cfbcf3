"""Rewards that come days after their answers."""
