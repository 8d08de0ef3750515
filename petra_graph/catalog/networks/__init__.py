"""Any `torch.nn.Module` as one node, and whole networks by their parts."""
