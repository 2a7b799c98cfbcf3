"""Simulated products with a known truth, and the train that carries a version through them."""
