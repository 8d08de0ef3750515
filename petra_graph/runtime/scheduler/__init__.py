"""One process at work: its stages, each in its own order."""
