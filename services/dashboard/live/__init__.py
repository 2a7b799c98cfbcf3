"""The state that the dashboard streams: the loop, traffic, lags and versions of this moment."""
