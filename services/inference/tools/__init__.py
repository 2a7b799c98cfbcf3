"""Calls of tools and reasoning, read from an answer in the form in which its model's family writes them."""
