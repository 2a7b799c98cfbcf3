"""Every table of `docs/performance.md` that one bare card can fill, in eight minutes."""
