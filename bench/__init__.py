"""Measurements: ``python -m bench`` prints one table from one run; see docs/testing.md."""
