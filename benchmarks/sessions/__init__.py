"""Sessions of the serving API: cost, memory, kills and swaps."""
