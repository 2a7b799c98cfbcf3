"""docker-compose.yml under podman-compose: users from outside, a kill of each container, an audit, and how each process ends."""
