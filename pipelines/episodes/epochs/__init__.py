"""Which outcomes of the trainer are still valid, and the states of samples after some became void."""
