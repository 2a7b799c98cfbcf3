"""Simulated trains through the real statistics of release."""
