"""The log behind its port, and what surrounds it: spool, outbox, dead letters, positions."""
