"""Tests that share one vLLM server."""
