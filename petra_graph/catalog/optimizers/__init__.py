"""Optimizers over a stage's decayed and undecayed parameters."""
