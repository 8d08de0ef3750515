"""Networks by name."""
