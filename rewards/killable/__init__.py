"""Runs work that may hang, crash or use all memory in processes that can be killed.

`Pool` keeps a few warm worker processes for one setup and gives each of them one item at a time. A worker that misses an
item's deadline is killed with all its children and replaced; other callers are not affected. `verifiers/referee.py`
decides whether the answer or the reference caused the failure.
"""

from rewards.killable.pool import NUM_WORKERS, Pool, pool_for
from runtime.killable.process import ItemOutcome, NotStarted, Setup

__all__ = ["NUM_WORKERS", "ItemOutcome", "NotStarted", "Pool", "Setup", "pool_for"]
