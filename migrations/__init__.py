"""The schema, as a history."""
