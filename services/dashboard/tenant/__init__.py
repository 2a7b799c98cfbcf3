"""The state of one tenant: only numbers that exist for each tenant."""
