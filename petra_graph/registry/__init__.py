"""Plugins: what they declare, how they are found, and when their code is loaded."""
