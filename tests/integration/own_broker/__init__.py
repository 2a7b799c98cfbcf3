"""Real Kafka, for tests that freeze and stop it."""
