"""Many runs of one specification: all combinations of swept values and seeds, each a run of its own process."""
