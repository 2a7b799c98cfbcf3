"""The release train: every version that passed the gate is proven on users before everybody gets it."""
