"""The weight codec beside its peers."""
