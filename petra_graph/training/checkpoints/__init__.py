"""Where a run begins and goes on: checkpoints at cuts, resuming from them, weights of a file."""
