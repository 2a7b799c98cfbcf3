"""Regions in network namespaces: links, replicas and engines behind them."""
