"""Where a run begins or is resumed: checkpoints at cuts, resuming from them, weights of a file."""
