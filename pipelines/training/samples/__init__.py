"""The samples that wait, are tried, and get their fate."""
