"""From a graph to stages and their programs."""
