"""Rewards of the past under the rules of today: replayed, and compared."""
