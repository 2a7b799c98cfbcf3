"""From a signal to the first answer by a version that learned from it."""
