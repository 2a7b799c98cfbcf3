"""What a tenant sees: its own numbers, and nothing that cannot be told apart by tenant."""
