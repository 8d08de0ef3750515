"""Any `torch.nn.Module` as nodes of petra-graph, for the distribution petra-graph-modules."""
