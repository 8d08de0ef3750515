"""Runs as pages: one run, or several compared."""
