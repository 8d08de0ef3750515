"""Cutting a table of costs into stages on devices: a library of its own, which knows no specification and no torch."""
