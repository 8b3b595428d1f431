"""The outside of plyfs: command line, daemon, socket protocol, configuration."""
