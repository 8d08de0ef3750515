"""The views of plans and of runs on a terminal."""
