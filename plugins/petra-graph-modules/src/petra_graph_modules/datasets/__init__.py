"""torch Datasets as a data set."""
