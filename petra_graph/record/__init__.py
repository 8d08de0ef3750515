"""What a run leaves: its directory, events, weights and environment."""
