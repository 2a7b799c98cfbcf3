"""A support agent of a little shop: a customer writes, the agent calls tools over HTTP, and the outcome is known at the end only."""
