"""What a run reads: the opened data set as micro-batches, loaded here or by other processes."""
