"""One trainer, several regions far away."""
