"""Runs programs that a model wrote: isolated, with limits, in one process tree per run that leaves nothing behind."""
