"""What replicas tell each other in passing: rate limits, answers to repeated requests, wake-ups.

Nothing of it is the truth. Without it, or while the server behind it is away, each process goes by what it knows itself:
limits count per replica, a repeated request runs again, and what would have been told is found at the next poll.
"""

from runtime.replicas.ports import Allowance, Bell, IdempotencyStore, RateLimiter, ReplicaLinks, RequestClaim

__all__ = ["Allowance", "Bell", "IdempotencyStore", "RateLimiter", "ReplicaLinks", "RequestClaim"]
