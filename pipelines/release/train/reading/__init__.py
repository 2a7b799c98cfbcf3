"""Reads from the log what a train and the lift compare: users' answers and their scores."""
