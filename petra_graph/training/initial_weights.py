"""Weights that a run begins with, from a file, in place of random ones.

A file of a run has node names with the names of parameters and buffers, as in `weights.safetensors`, so the stages may be others.
A file of another program, such as a pretrained network's `state_dict`, knows no nodes: each of its tensors belongs to the one node
that has a tensor of that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from attrs import frozen

from petra_graph.errors import Problem, SpecError
from petra_graph.executor.stage import StageExecutor
from petra_graph.measure.shapes import build_block
from petra_graph.planning.measure import MeasuredNetwork
from petra_graph.record.weights import SEPARATOR, WEIGHTS, UnreadableWeights, WeightFile, open_weights
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


@frozen
class _Match:
    """A network's tensors and a file's, compared by name and shape."""

    fitting: Mapping[str, str]
    """By the network's name of a tensor, the file's."""
    left_out: Sequence[str]
    """Of the network, by its names."""
    faults: Sequence[str]
    """One for each kind, naming some."""


def matched(init: InitSpec, network: MeasuredNetwork) -> str:
    """Compare a file with a network, without its weights; return what matches, for the user.

    Raises:
        SpecError: there is no such file, or it cannot be read; or something does not match, and `init.strict` is set.
    """
    assert init.weights is not None
    file = weights_file(init.weights)
    here = dict(_shapes(network))
    with _opened(file) as opened:
        match = _match(init, here, opened.shapes)
    if match.faults and init.strict:
        hint = (
            'name tensors in init.leave_out, as in ["head"] for a node, to begin with random values there, '
            "or set init.strict = false to load what matches"
        )
        raise SpecError(Problem(message=f"{file} does not fit: {'; '.join(match.faults)}", hint=hint, path=_PATH))
    said = [f"{len(match.fitting)} of {len(here)} tensors are from {file}"]
    if match.left_out:
        said.append(f"{_some(match.left_out)} left out")
    return "; ".join([*said, *match.faults])


@torch.no_grad()
def load_initial(init: InitSpec, executors: Sequence[StageExecutor], network: MeasuredNetwork) -> None:
    """Let the nodes of this process have the weights of a file that has been compared with the network.

    Raises:
        SpecError: the file cannot be read any more.
    """
    assert init.weights is not None
    here = dict(_shapes(network))
    with _opened(weights_file(init.weights)) as opened:
        fitting = _match(init, here, opened.shapes).fitting
        for executor in executors:
            for name, module in executor.modules.items():
                for key, value in module.state_dict(keep_vars=True).items():
                    stored = fitting.get(f"{name}{SEPARATOR}{key}")
                    if stored is not None:
                        value.copy_(opened.read(stored))


def _match(init: InitSpec, here: Mapping[str, tuple[int, ...]], there: Mapping[str, tuple[int, ...]]) -> _Match:
    """Compare shapes by name; a tensor of the file without a node's name belongs to the one node that has its like."""
    owners = Counter(map(_key, here))
    names = {name: name if name in there else _key(name) for name in here}
    several = [key for key in there if owners[key] > 1 and any(names[name] == key for name in here)]
    own = {name: stored for name, stored in names.items() if stored in there and stored not in several}
    left_out = [name for name in here if _named(init.leave_out, name)]
    asked = here.keys() - set(left_out)
    fitting = {name: stored for name, stored in own.items() if name in asked and there[stored] == here[name]}
    missing = [name for name in here if name in asked and names[name] not in there]
    other = [
        f"{name} is {list(there[stored])} in the file, and {list(here[name])} here"
        for name, stored in own.items()
        if name in asked and name not in fitting
    ]
    known = {*own.values(), *several}
    unknown = [key for key in there if key not in known and not _named(init.leave_out, key)]
    faults = [
        (several, "in the file {are} in several nodes of the network"),
        (missing, "{are} not in the file"),
        (other, ""),
        (unknown, "of the file {are} not in the network"),
    ]
    return _Match(
        fitting,
        left_out,
        [f"{_some(found)} {said.format(are=_are(found))}".strip() for found, said in faults if found],
    )


def _key(name: str) -> str:
    return name.partition(SEPARATOR)[2]


def _named(patterns: Sequence[str], name: str) -> bool:
    """Whether a pattern names a tensor: by its whole name, its node, or its name in the node."""
    forms = (name, *name.split(SEPARATOR, 1))
    return any(fnmatchcase(form, pattern) for form in forms for pattern in patterns)


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {rest} more" if rest > 0 else "")


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


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
def _opened(file: Path) -> Iterator[WeightFile]:
    try:
        with open_weights(file) as opened:
            yield opened
    except UnreadableWeights as error:
        raise SpecError(Problem(message=str(error), path=_PATH)) from None
