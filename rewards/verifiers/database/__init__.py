"""How queries are run and their rows compared."""
