"""Losses, and what evaluation counts."""
