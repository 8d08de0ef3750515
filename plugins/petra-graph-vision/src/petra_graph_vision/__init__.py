"""Data sets of image files; this module imports nothing."""
