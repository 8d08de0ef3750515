"""Reports of runs: one run, several compared, and the list of all."""
