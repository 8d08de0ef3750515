"""Parameters and running statistics in safetensors, keyed by node: "layer1.0/first.0.weight".

Keys name nodes, never stages, so the same file loads under any partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor, nn

from petra_graph.record.run_directory import write_whole

SEPARATOR = "/"


def weights_of(modules: Iterable[tuple[str, nn.Module]]) -> dict[str, Tensor]:
    """Return all tensors of (node name, module) pairs, on the CPU and densely laid out."""
    return {
        f"{name}{SEPARATOR}{key}": tensor.detach().cpu().contiguous()
        for name, module in modules
        for key, tensor in module.state_dict().items()
    }


def save_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights whole."""
    write_whole(path, lambda temporary: save_file(dict(weights), temporary))
