"""Loggers that come with the package."""
