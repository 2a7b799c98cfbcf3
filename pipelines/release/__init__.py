"""Judges candidate versions: an accepted one becomes live, a refused one leaves."""
