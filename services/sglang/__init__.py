"""Brings SGLang servers that somebody else runs to the versions that their slots are assigned; torch-free."""
