"""A reversible ConvNeXt block for petra-graph; this module imports nothing."""
