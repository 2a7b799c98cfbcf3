"""The page of a session: the tree of its calls, and what was said of each."""
