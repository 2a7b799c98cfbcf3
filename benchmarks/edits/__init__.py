"""What text teaches: users who correct answers instead of voting, with known truth. `python -m benchmarks.edits`."""
