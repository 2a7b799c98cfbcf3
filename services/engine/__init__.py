"""The engine: runs the model, and serves tokens over HTTP."""
