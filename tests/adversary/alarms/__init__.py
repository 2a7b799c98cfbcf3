"""Which alarm names which fault, and how fast."""
