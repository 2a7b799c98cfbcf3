"""The first minutes of a newcomer, measured."""
