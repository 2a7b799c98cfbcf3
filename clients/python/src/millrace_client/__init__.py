"""Tells Millrace what users made of an answer; see `Feedback`."""

from millrace_client.feedback import AsyncFeedback, Feedback, TrackedAnswer
from millrace_client.outbox import Counts

__all__ = ["AsyncFeedback", "Counts", "Feedback", "TrackedAnswer"]
