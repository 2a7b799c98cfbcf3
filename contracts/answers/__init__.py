"""An answer as its model wrote it: content, reasoning and calls of tools, in the form of every family.

The endpoint reads its engine's tokens here, and verifiers read texts.
"""
