"""An answer as its model wrote it, of any family: content, reasoning and calls. The endpoint reads tokens here, verifiers texts."""
