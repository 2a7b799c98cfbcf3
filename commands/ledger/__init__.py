"""The parts of `millrace audit`: both sides of the ledger, and what each difference between them means."""
