"""Checkpoints of a run: when they are cut, how they are written, and how a run is resumed from one."""
