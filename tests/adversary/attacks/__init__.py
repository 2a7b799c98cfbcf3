"""Attacks on Millrace that anyone can run: each names what it tries, and reports what got through."""
