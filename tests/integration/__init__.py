"""Real processes, one machine."""
