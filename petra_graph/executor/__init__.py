"""One stage: forward, backward, update."""
