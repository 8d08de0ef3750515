"""The operations of one stage: forward, backward, update."""
