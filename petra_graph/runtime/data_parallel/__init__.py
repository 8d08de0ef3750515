"""Replicas of the pipeline: gradients and statistics averaged over them."""
