"""Where users' bytes are kept: content-addressed objects, histories of checkpoints, journals. Knows no FUSE."""
