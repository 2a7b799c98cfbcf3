"""Counts what a policy does, by version, and raises alarms for habits that it should not have learned."""
