"""The conformance kit for authors of blocks."""
