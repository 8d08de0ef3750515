"""Small networks, which one thread computes faster than several that wait for one another."""

import torch

torch.set_num_threads(1)
