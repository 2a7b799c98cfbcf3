"""Tells an operator's other systems of every move: one signed POST for each URL, repeated until it is accepted."""
