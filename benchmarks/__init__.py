"""Each module measures one thing, with its peers in the same run, and writes dated JSON to `results/`."""
