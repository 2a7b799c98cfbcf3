"""The commands `millrace demo` and `millrace demo-agent`: a whole home beside simulated users, and what they felt."""
