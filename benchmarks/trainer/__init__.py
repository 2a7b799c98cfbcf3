"""The trainer's state, and the outcomes that it reports."""
