"""Weights that a run begins with, from a file that another run has written, in place of random ones.

The keys are node names with the names of parameters and buffers, as in `weights.safetensors`, so the stages may be others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from petra_graph.errors import Problem, SpecError
from petra_graph.executor.stage import StageExecutor
from petra_graph.measure.shapes import build_block
from petra_graph.planning.measure import MeasuredNetwork
from petra_graph.record.weights import SEPARATOR, WEIGHTS
from petra_graph.spec.model import InitSpec

_PATH = ("init", "weights")
_LISTED = 5


def weights_file(weights: str) -> Path:
    """Return the file that `init.weights` names: a file, or that of a run's directory.

    Raises:
        SpecError: there is none.
    """
    path = Path(weights).expanduser()
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise SpecError(
            Problem(message=f"there is no file {file}", hint="give a file or a run's directory", path=_PATH)
        )
    return file


def matched(init: InitSpec, network: MeasuredNetwork) -> str:
    """Compare a file with a network, without its weights; return what matches, for the user.

    Raises:
        SpecError: there is no such file, or it cannot be read; or something does not match, and `init.strict` is set.
    """
    assert init.weights is not None
    file = weights_file(init.weights)
    with _opened(file) as opened:
        there = {key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()}  # noqa: SIM118  no mapping
    here = dict(_shapes(network))
    faults = [f"{key} is not in the file" for key in here if key not in there]
    faults += [
        f"{key} is {list(there[key])} in the file, and {list(shape)} here"
        for key, shape in here.items()
        if key in there and there[key] != shape
    ]
    faults += [f"{key} of the file is not in the network" for key in there if key not in here]
    listed = [*faults[:_LISTED], *[f"{len(faults) - _LISTED} more tensors do not match"] * (len(faults) > _LISTED)]
    if faults and init.strict:
        hint = "set init.strict = false to load what matches"
        raise SpecError([Problem(message=f"{file} does not fit: {fault}", hint=hint, path=_PATH) for fault in listed])
    matching = sum(there.get(key) == shape for key, shape in here.items())
    return "; ".join([f"{matching} of {len(here)} tensors are from {file}", *listed])


@torch.no_grad()
def load_initial(init: InitSpec, executors: Sequence[StageExecutor]) -> None:
    """Let the nodes of this process have the weights of a file that has been compared with the network.

    Raises:
        SpecError: the file cannot be read any more.
    """
    assert init.weights is not None
    with _opened(weights_file(init.weights)) as opened:
        there = set(opened.keys())
        for executor in executors:
            for name, module in executor.modules.items():
                for key, value in module.state_dict(keep_vars=True).items():
                    if (stored := f"{name}{SEPARATOR}{key}") in there:
                        found = opened.get_tensor(stored)
                        if found.shape == value.shape:
                            value.copy_(found)


def _shapes(network: MeasuredNetwork) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, node in network.graph.nodes.items():
        inputs = network.shapes[name].inputs
        try:
            with torch.device("meta"):
                block = build_block(node, inputs)
        except SpecError:  # it reads values
            block = build_block(node, inputs)
        for key, value in block.state_dict().items():
            yield f"{name}{SEPARATOR}{key}", tuple(value.shape)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    try:
        with safe_open(file, framework="pt") as opened:
            yield opened
    except (OSError, SafetensorError) as error:
        raise SpecError(Problem(message=f"{file} cannot be read: {error}", path=_PATH)) from None
