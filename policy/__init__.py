"""The model itself: loading, log-probs and writing weights in place."""
