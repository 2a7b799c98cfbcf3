"""The ledger of incidents."""
