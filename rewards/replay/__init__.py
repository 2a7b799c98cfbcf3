"""Replays old episodes with today's graders, and compares the rewards."""
