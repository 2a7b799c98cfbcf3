"""What the replicas of a process share, as far as it may be lost: limits, answers to repeated requests, sessions, wake-ups.

None of it is the source of truth. Without Redis, or while Redis is away, each process relies on what it knows itself: limits
count per replica, a repeated request runs again, a session is rendered anew, and a change that nobody announced is found at the next poll.
"""

from runtime.replicas.ports import (
    Allowance,
    Bell,
    IdempotencyStore,
    RateLimiter,
    ReplicaLinks,
    RequestClaim,
    SessionStore,
)

__all__ = ["Allowance", "Bell", "IdempotencyStore", "RateLimiter", "ReplicaLinks", "RequestClaim", "SessionStore"]
