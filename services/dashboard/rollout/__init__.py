"""The Rollout and Lift pages: the running train with its evidence, earlier trains, and what the product gained over the base."""
