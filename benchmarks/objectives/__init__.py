"""Which objective survives: old samples, large steps, small batches, missing and wrong rewards. `python -m benchmarks.objectives`."""
