"""Two more products beside the demo's: sums whose answers a verifier checks, and notes that a judge reads."""
