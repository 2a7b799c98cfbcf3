"""Rewards that suddenly change, and who is to blame."""
