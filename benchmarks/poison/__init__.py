"""Poisoned samples and turned rewards beside a clean run."""
