"""What is saved, and the way back to it."""
