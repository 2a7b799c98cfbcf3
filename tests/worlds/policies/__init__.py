"""Tiny policies, and the loop that teaches them."""
