"""The whole loop."""
