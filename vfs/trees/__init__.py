"""Trees as values: looking into them, comparing, joining and translating them. Nothing here is live."""
