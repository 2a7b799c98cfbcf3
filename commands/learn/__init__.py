"""A warm start: what the log says in text, chosen and filtered, before a trainer sees it."""
