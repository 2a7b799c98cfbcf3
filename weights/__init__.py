"""Versions of a policy as bytes: format, codec, store."""
