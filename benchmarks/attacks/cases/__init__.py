"""What attacks on verifiers say, made from random questions, so that no rule can be written for these alone."""
