"""The Rewards page: what each version earns, what had no reward and why, what stood out, what judges cost, who votes."""
