"""Where programs that a model wrote run: behind walls, under limits, one process tree per run and nothing left after it."""
