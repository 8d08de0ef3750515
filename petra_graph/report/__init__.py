"""The views of plans and of runs, for people."""
