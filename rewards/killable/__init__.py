"""Runs work that may hang, crash or use all memory in a few warm worker processes, each with one item at a time.

A worker that misses an item's deadline is killed with all its children and replaced. `verifiers/referee.py` decides whose fault it was.
"""

from rewards.killable.pool import NUM_WORKERS, Pool, num_cores, pool_for
from rewards.killable.process import ItemOutcome, NotStarted, Setup

__all__ = ["NUM_WORKERS", "ItemOutcome", "NotStarted", "Pool", "Setup", "num_cores", "pool_for"]
