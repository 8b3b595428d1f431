"""The real directory below a mount: since when it is covered, and what others changed in it meanwhile."""
