"""A region's cache of a weight store."""
