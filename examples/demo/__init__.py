"""`millrace demo`, `demo-agent` and `demo-takeover`: a product of `examples/` whose users teach a model, and the figures of that."""
