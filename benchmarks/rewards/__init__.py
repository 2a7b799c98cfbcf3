"""What scoring costs."""
