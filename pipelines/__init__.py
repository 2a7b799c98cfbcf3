"""What consumes the log."""
