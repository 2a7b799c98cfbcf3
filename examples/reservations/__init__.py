"""A reservations assistant: one sentence in, one booking as compact JSON out."""
