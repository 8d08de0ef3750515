"""Weights that a run begins with, from a file, instead of random ones.

A file of a run has node names with the names of parameters and buffers, as in `weights.safetensors`, so the stages may be others.
A file of another program, such as a pretrained network's `state_dict`, knows no nodes: each of its tensors belongs to the one node
that has a tensor of that name. Tensors of a block's `begun_anew` may be missing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from attrs import frozen

from petra_graph.blocks import Block
from petra_graph.errors import Problem, SpecError, at_path
from petra_graph.measure.nodes import build_to_look_at
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.record.weights import SEPARATOR, WEIGHTS, copy_weights, is_named, open_weights
from petra_graph.spec.model import InitSpec
from petra_graph.units import listed

_PATH = ("init", "weights")


@frozen(kw_only=True)
class InitialWeights:
    """A file that has been compared with a network."""

    file: Path
    fitting: Mapping[str, str]  # the file's name of each tensor, by the network's name
    said: str  # a text for the user on what matches

    def load(self, modules: Iterable[tuple[str, Block]]) -> None:
        """Load the weights into nodes, by their names; SpecError: the file can no longer be read."""
        with at_path(*_PATH), open_weights(self.file) as opened:
            copy_weights(modules, lambda name: opened.read(self.fitting[name]) if name in self.fitting else None)


def initial_weights(init: InitSpec, network: MeasuredNetwork) -> InitialWeights:
    """Compare the file that `init.weights` names, or that of a run's directory, with a network, by names and shapes; SpecError: it does not fit."""
    assert init.weights is not None
    path = Path(init.weights).expanduser()
    file = path / WEIGHTS if (path / WEIGHTS).is_file() else path

    here, keys = dict[str, tuple[int, ...]](), dict[str, str]()  # the shape and the name in its node
    of = dict[str, str]()  # one name for all names of a tensor
    begun = set[str]()  # what a file may lack, by that name
    forms = defaultdict[str, list[str]](list)  # what a tensor may be called, by that name
    for node, graph_node in network.graph.nodes.items():
        block = build_to_look_at(graph_node, network.shapes[node].inputs)
        state = block.state_dict(keep_vars=True)
        labels = {id(state[key]): shared.label for key, shared in network.shapes[node].shared.items()}
        for key, value in state.items():
            name = f"{node}{SEPARATOR}{key}"
            here[name], keys[name], of[name] = tuple(value.shape), key, labels.setdefault(id(value), name)
            forms[of[name]] += [name, key]
            begun |= {of[name]} if is_named(block.begun_anew, key) else set()
    with at_path(*_PATH), open_weights(file) as opened:
        shapes = opened.shapes
    called = {name: (name, key, *forms[of[name]]) for name, key in keys.items()}
    found = {name: next((form for form in own if form in shapes), "") for name, own in called.items()}
    owners = Counter(key for key, _ in {(key, of[name]) for name, key in keys.items()})
    several = [key for key in shapes if owners[key] > 1 and key in found.values()]
    own = {name: form for name, form in found.items() if form and form not in several}
    left_out = {name for name in here if is_named(init.leave_out, name)}
    fitting = {name: form for name, form in own.items() if name not in left_out and shapes[form] == here[name]}
    known = {*own.values(), *several}
    every = {
        "in several nodes of the network": several,
        "not in the file": [one for one in here if not (found[one] or of[one] in begun or one in left_out)],
        "of another shape": [
            f"{name} {list(shapes[form])} in the file, {list(here[name])} here"
            for name, form in own.items()
            if name not in fitting and name not in left_out
        ],
        "not in the network": [one for one in shapes if one not in known and not is_named(init.leave_out, one)],
    }
    if faults := [f"{text}: {listed(some)}" for text, some in every.items() if some]:
        hint = 'name tensors in init.leave_out, as in ["head"] for a node, to begin with random values there'
        raise SpecError(Problem(message=f"{file} does not fit: {'; '.join(faults)}", hint=hint, path=_PATH))
    return InitialWeights(file=file, fitting=fitting, said=f"{len(fitting)} of {len(here)} tensors come from {file}")
