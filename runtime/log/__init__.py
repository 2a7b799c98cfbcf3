"""The log: its implementations (embedded and Kafka), spool, outbox, dead letters, and detection of lost records."""
