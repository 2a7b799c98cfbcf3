"""What the replicas of a process share, as far as it may be lost: rate limits, answers to repeated requests, wake-ups.

None of it is the source of truth. Without Redis, or while Redis is away, each process relies on what it knows itself: limits
count per replica, a repeated request runs again, and a change that nobody announced is found at the next poll.
"""

from runtime.replicas.ports import Allowance, Bell, IdempotencyStore, RateLimiter, ReplicaLinks, RequestClaim

__all__ = ["Allowance", "Bell", "IdempotencyStore", "RateLimiter", "ReplicaLinks", "RequestClaim"]
