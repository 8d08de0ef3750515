"""A network's tensors as one table: by node, or, of a network that was cut into nodes, as its own `load_state_dict` takes them.

Decision: what the run's network computes is compared with what its own class computes after `load_state_dict`, and not only the names. Names
say nothing of tensors that are one there and several here (`partition.untie`, an adapter of a tied layer), of values that the constructor draws
and no file has, nor of a converted network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from petra_graph.blocks.couplings.residual_chain import COEFFICIENTS
from petra_graph.errors import RunFailed
from petra_graph.inference.trained_network import Network
from petra_graph.kinds.tensor_trees import inputs_of
from petra_graph.units import listed

_LISTED = 5
INSTEAD = "torch-export and onnx write what was trained, and weights.safetensors in the run's directory has the tensors by node"


def collect_tensors(network: Network) -> tuple[Mapping[str, Tensor], Callable[[Tensor], Tensor] | None]:
    """Return tensors by their names in a file, and what the network's own class computes with them; None where it has no such class.

    Raises:
        RunFailed: its own class cannot have these values.
    """
    blocks = [(name, network.block(name)) for name in network.graph.nodes]
    tensors: dict[str, Tensor] = {}
    several: set[str] = set()
    for name, block in blocks:
        for key, value in block.state_dict().items():
            in_network = block.of_network is not None and key not in COEFFICIENTS
            written = tensors.setdefault(key if in_network else f"{name}.{key}", value.cpu().contiguous().clone())
            several |= set() if torch.equal(written, value.cpu()) else {key}
    makes = {block.of_network for _, block in blocks}
    make = makes.pop() if len(makes) == 1 else None
    if make is None and not several:
        return tensors, None
    if make is None:
        raise RunFailed(f"nothing is written: several nodes have {listed(sorted(several), _LISTED)}", INSTEAD)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        own = make()
    own.to(network.numerics.dtype).eval()
    try:
        own.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        text = f"nothing is written: the network's own class does not load the tensors: {reason}"
        raise RunFailed(text, INSTEAD) from None
    held = [*own.named_parameters(remove_duplicate=False), *own.named_buffers(remove_duplicate=False)]
    loaded = {key: value for key, value in held if key in tensors}
    several |= {key for key, value in loaded.items() if not torch.equal(value, tensors[key])}
    if several:
        names = [key for key, value in loaded.items() if any(value is loaded[one] for one in several)]
        have = "has" if len(names) == 1 else "have"
        found = f"{listed(names, _LISTED)} {have} one value in the network's own class, and several here"
        raise RunFailed(f"nothing is written: {found}", INSTEAD)
    return tensors, lambda samples: own(*map(network.numerics.prepare, inputs_of(samples)))
