"""The part of the ledger about learning: see queries.py."""

from commands.ledger.learning.queries import KEPT_SECONDS, LearningCounts, LearningFindings, check_learning

__all__ = ["KEPT_SECONDS", "LearningCounts", "LearningFindings", "check_learning"]
