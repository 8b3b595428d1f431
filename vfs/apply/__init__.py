"""Writing a tree into the base: planned, staged, committed, rolled forward."""
