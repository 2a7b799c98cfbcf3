"""Other people's engines: one file per server, each a client that brings it from one published version to the next."""
