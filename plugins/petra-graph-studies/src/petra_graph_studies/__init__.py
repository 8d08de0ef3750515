"""Sweeps, the probe of gradients, corrections of late gradients, and trackers of experiments, for petra-graph; this module imports nothing."""
