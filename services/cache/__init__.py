"""A region's cache of a weight store: what its replicas ask for crosses the link to the trainer once."""
