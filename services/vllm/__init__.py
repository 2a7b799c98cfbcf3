"""Keeps vLLM servers running, and brings each to the version that its slot is assigned; torch-free."""
