"""Gate, canary, live, or back."""
