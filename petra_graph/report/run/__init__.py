"""Runs as text: the list of all, and what was planned and measured."""
