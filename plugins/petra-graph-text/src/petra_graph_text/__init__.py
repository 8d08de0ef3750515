"""Text for petra-graph: networks, pretrained decoders, data; this module imports nothing."""
