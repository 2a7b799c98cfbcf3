"""What states and steps are made of: experiences, batches, what is known of samples, the tree of versions."""
