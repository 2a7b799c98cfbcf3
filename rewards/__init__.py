"""What turns behaviour into a number."""
