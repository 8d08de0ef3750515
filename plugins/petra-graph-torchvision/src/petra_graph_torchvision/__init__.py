"""torchvision's classification networks as nodes of petra-graph, and reversible networks made of them."""
