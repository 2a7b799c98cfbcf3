"""Work that may hang, crash or eat the memory: done in processes that can be killed.

`Pool` keeps a few warm worker processes for one setup and hands each of them one item at a time. A worker that misses an
item's deadline is killed with everything it started, and replaced; whoever else waits does not notice. `referee` decides
on top of it whose fault a death was: the answer's or the reference's.
"""

from rewards.killable.pool import NUM_WORKERS, Pool, pool_for
from rewards.killable.process import ItemOutcome, NotStarted, Setup

__all__ = ["NUM_WORKERS", "ItemOutcome", "NotStarted", "Pool", "Setup", "pool_for"]
