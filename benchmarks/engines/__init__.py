"""Our engine beside vLLM."""
