"""Use cases: validate, prepare, run."""
