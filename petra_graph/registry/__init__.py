"""Plugins: their contracts, discovery and code."""
