"""The nodes of a specification's network as modules in a row, outside of any pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from attrs import frozen
from safetensors.torch import load_file
from torch import Tensor

from petra_graph.blocks import Block, Streams
from petra_graph.executor.numerics import Normalisation
from petra_graph.measure.build_block import build_block
from petra_graph.training.prepared_run import Prepared


@frozen
class Chain:
    """Modules by node, in order."""

    blocks: Mapping[str, Block]

    @classmethod
    def of(cls, ready: Prepared, dtype: torch.dtype = torch.float32) -> Chain:
        """Build the nodes with the weights that the run would begin with."""
        network = ready.network
        order = network.graph.order
        blocks = {name: build_block(network.graph.nodes[name], network.shapes[name].inputs) for name in order}
        weights = ready.spec.init.weights
        assert weights is not None
        stored = load_file(Path(weights) / "weights.safetensors")
        for name, block in blocks.items():
            own = block.state_dict()
            own.update({key: stored[f"{name}/{key}"] for key in own if f"{name}/{key}" in stored})
            block.load_state_dict(own)
            block.to(dtype)
        return cls(blocks)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits [n, classes] of images [n, c, h, w]."""
        streams: Streams = (images,)
        for block in self.blocks.values():
            streams = block(*streams)
        return streams[0]

    @torch.no_grad()
    def accuracy(self, ready: Prepared, batch: int = 500) -> float:
        """Return the share of test images that are classified rightly."""
        for block in self.blocks.values():
            block.eval()
        dtype = next(next(iter(self.blocks.values())).parameters()).dtype
        count, right = len(ready.opened.data.test), 0
        for start in range(0, count, batch):
            images, targets = ready.opened.data.test.fetch(np.arange(start, min(count, start + batch)), seed=0, epoch=0)
            right += int((self(seen(images, ready, dtype)).argmax(1) == targets).sum())
        return right / count


def seen(images: Tensor, ready: Prepared, dtype: torch.dtype) -> Tensor:
    """Return images of the data set as the first node reads them."""
    scaled = images.to(dtype) / 255
    normal = Normalisation.of(ready.facts)
    if normal is None:
        return scaled
    mean, std = (torch.tensor(values, dtype=dtype)[:, None, None] for values in (normal.mean, normal.std))
    return (scaled - mean) / std
