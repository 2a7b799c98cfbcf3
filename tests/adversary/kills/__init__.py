"""Processes killed with SIGKILL at random moments."""
