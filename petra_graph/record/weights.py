"""Parameters and running statistics in safetensors, keyed by node: "layer1.0/first.0.weight".

Keys name nodes, never stages, so the same file loads under any partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from petra_graph.record.run_directory import write_whole

SEPARATOR = "/"
WEIGHTS = "weights.safetensors"
"""The file in a run's directory."""


def weights_of(modules: Iterable[tuple[str, nn.Module]]) -> dict[str, Tensor]:
    """Return all tensors of (node name, module) pairs, on the CPU, densely laid out, none in memory of another."""
    weights: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, module in modules:
        for key, tensor in module.state_dict().items():
            dense = tensor.detach().cpu().contiguous()
            memory = dense.untyped_storage().data_ptr()
            weights[f"{name}{SEPARATOR}{key}"] = dense.clone() if memory in taken else dense
            taken.add(memory)
    return weights


def save_weights(path: Path, weights: Mapping[str, Tensor], facts: Mapping[str, str] | None = None) -> None:
    """Write tensors and facts, the file whole or not at all.

    Raises:
        RunFailed: the disk refuses.
    """

    def save(temporary: Path) -> None:
        try:
            save_file(dict(weights), temporary, None if facts is None else dict(facts))
        except SafetensorError as error:  # a full disk, for one; it is not an OSError
            raise OSError(str(error)) from error

    write_whole(path, save)
