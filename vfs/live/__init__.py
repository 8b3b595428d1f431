"""The live tree: what is served now, every operation on it, and what makes its changes safe."""
