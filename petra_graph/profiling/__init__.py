"""Seconds of nodes and of links on the real device, for plans that need no estimates."""
