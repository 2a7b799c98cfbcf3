"""What the trainer learns from text that has no log-probs: edits, accepted answers, pairs of answers, lone thumbs."""
