"""`millrace demo` and `demo-agent`: a product of `examples/` whose users teach a model, and the figures of that."""
