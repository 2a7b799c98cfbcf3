"""The engine beside `generate` of transformers."""
