"""What answers HTTP."""
