"""What the dashboard streams: the loop, traffic, lags and versions as they are now."""
