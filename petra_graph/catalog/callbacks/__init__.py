"""Callbacks that come with the package."""
