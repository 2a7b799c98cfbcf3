"""Deltas that were mutated, truncated, replayed or forged: is any of them applied?"""
