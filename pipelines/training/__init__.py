"""The continuous trainer."""
