"""Blocks of residual networks, with their stems, merges and heads."""
