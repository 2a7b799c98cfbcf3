"""Which versions the shadow of a train refuses, by simulation."""
