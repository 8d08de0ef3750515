"""Reversible transformers and text data sets for petra-graph; this module imports nothing."""
