"""Serving a workspace without FUSE: the plain directory is scanned, and restored by renames."""
