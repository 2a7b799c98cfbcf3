"""Attacks on Millrace that anyone can run: each says what it tries, and what it got."""
