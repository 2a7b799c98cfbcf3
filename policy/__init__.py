"""The model itself: loading, names, log-probs."""
