"""The keys of answers, which are join keys and sessions, and the signals about them."""
