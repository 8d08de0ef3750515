"""A reversible ConvNeXt block for petra-graph; importing this imports nothing."""
