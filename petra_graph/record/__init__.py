"""The files of a run: its directory, events, weights and environment."""
