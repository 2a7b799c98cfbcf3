"""What processes agree on: records, ids, topics, tasks, tables, errors and ports. Opens nothing, imports no client."""
