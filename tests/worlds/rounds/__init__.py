"""A watchman's round of 13 answers, judged at its end only: the longest session that the tests learn from."""
