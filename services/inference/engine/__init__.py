"""The client of the engine: requests, HTTP, the wire format."""
