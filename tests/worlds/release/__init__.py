"""What release is tested with: a gate, a track, a product."""
