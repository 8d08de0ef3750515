"""Blocks of residual networks, and what surrounds them."""
