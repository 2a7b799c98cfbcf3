"""A watchman's round of 50 answers, judged at its end only: the longest session that the tests learn from."""
