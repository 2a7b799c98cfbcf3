"""How much memory training a policy takes, computed from its configuration and the shapes of its tensors alone."""
