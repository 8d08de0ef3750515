"""Metrics over a whole evaluation."""
