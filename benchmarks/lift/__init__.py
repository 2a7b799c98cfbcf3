"""The lift over a table full of answers, beside the train."""
