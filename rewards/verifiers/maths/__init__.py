"""How boxed answers are read and compared."""
