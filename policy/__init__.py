"""The model itself: loading, log-probs, writing weights in place, and the plug-in for vLLM."""
