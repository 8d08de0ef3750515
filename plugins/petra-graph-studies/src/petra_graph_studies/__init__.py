"""Sweeps of runs, plans of many values, and the probe of gradients; this module imports nothing."""
