"""From a specification to a run directory: prepare, train, record."""
