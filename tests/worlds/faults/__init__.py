"""A home on real servers that are frozen, killed and full, and what must balance afterwards."""
