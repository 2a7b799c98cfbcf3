"""Floods of signals about a few answers, beside the work of others."""
