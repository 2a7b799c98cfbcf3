"""A pool of cards: a day simulated, and processes that stand for cards killed."""
