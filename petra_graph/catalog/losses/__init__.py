"""Losses, each with its counts for evaluation."""
