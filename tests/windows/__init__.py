"""What runs on Windows itself: `python -m tests.windows.story`."""
