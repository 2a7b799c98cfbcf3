"""`python -m benchmarks.audit`: what `millrace audit` costs."""
