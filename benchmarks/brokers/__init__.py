"""Three brokers that lose one at a time under load."""
