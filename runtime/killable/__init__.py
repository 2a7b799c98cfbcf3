"""A process that works on one item at a time, each with a deadline, and can be killed."""
