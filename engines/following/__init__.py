"""What the processes share that bring other projects' engines to assigned versions; torch-free."""
