"""What attacks send: answers, programs, broken replies. Cases for verifiers are made from random questions, so that no rule fits them alone."""
