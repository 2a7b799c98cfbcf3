"""Homes with traffic, as the dashboard's tests and commands read them."""
