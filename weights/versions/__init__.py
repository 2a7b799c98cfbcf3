"""What a version is on paper: manifests, routes, pointers, snapshots, and who signs them. No I/O but key files."""
