"""What the trainer remembers and tells."""
