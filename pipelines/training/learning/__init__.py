"""The policy that is trained: batches, losses, optimizer, guards."""
