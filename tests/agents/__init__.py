"""The real agents, with the extension, driven by a scripted model."""
