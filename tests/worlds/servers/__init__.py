"""Servers that tests start or stand before, a load for them, and the peers that they are compared with."""
