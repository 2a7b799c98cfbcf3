"""The metadata of a version: manifests, routes, pointers, snapshots, signatures. No I/O except key files."""
