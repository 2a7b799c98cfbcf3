"""Homes, engines, stores and crowds that tests, attacks and benchmarks run against."""
