"""Conversations of simulated users, and what the log holds of them."""
