"""How a process runs: settings, database, worker, log, metrics, replicas."""
