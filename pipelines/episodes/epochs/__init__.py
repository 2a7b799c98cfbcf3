"""Which of the trainer's words still hold, and what the ledger says again when some of them no longer do."""
