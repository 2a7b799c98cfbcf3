"""Changes of weights while answers are being made."""
