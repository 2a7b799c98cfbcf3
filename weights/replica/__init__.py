"""A copy of a policy on a local disk, kept in step with a store."""
