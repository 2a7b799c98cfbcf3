"""What a policy does, counted by version, and the alarms for what it should not have learned."""
