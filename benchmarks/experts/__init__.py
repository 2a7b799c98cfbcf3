"""What replaying the experts of a mixture is worth, and what it costs."""
