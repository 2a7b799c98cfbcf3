"""The five topics and their retention. All have the same number of partitions, and the same partition key."""

from __future__ import annotations

from contracts.ids import parse_sample_key, route_of

GENERATIONS = "generations"
SIGNALS = "signals"
EPISODES = "episodes"
EXPERIENCES = "experiences"
OUTCOMES = "outcomes"

TOPICS = (GENERATIONS, SIGNALS, EPISODES, EXPERIENCES, OUTCOMES)
RETENTION_DAYS = {GENERATIONS: 30, SIGNALS: 30, EPISODES: 7, EXPERIENCES: 7, OUTCOMES: 30}


def route_of_key(key: str) -> int:
    """The route of a record key, which is its completion's; a control record has an empty key and route 0."""
    return route_of(parse_sample_key(key)[0]) if key else 0
