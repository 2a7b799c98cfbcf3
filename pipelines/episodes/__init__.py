"""Generation and signals become episodes; outcomes become the ledger."""
