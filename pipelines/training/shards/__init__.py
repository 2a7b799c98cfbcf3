"""One trainee in several processes: rank 0 decides, the other ranks are its hands."""
