"""What release is tested with: a gate, a track, a product, a receiver of webhooks."""
