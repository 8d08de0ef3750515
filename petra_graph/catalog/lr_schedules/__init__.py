"""Learning-rate schedules: factors of the base learning rate by update."""
