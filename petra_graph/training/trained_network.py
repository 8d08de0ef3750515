"""A network as an ordinary module, samples in, the head's output out; and the file of weights that a run begins with, compared with a network.

In evaluation mode a forward gives the bits of the run's own evaluations: the arithmetic between nodes is the executors'
(`executor.numerics`). It is plain autograd, so the module can also be trained further, in anyone's loop.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import attrs
import torch
from attrs import frozen
from torch import Tensor, nn

from petra_graph.blocks import Block, Head, Streams
from petra_graph.errors import Problem, SpecError, at_path
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.graph.node_graph import INPUT
from petra_graph.measure.nodes import build_to_look_at, initial_blocks, tie
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.tensor_trees import Tree
from petra_graph.record.weights import SEPARATOR, WEIGHTS, copy_weights, is_named, open_weights
from petra_graph.spec.model import InitSpec
from petra_graph.units import listed


class Network(nn.Module):
    """All nodes of a graph in one module, on the CPU, with the random parameters that a run would begin with.

    `network.nodes` has each node's block; names are those of the specification, with "/" in place of ".", which torch
    does not allow: `network.nodes["layer1/0"]`. `load_weights` takes the names of `weights.safetensors`.
    """

    def __init__(self, network: MeasuredNetwork, facts: DataFacts) -> None:
        """Build all blocks, for samples and targets of these facts; SpecError, PluginError: one cannot be built."""
        super().__init__()
        self.graph, self.facts, self.numerics = network.graph, facts, NumericsContext.of_run(network.spec, facts)
        begun = initial_blocks(network.graph, network.shapes, network.spec.run.seed, network.graph.nodes)
        blocks = {name: place(block, self.numerics) for name, block in begun.items()}
        if not network.spec.partition.untie:
            tie(blocks, network.shapes)
        self.nodes = nn.ModuleDict({name.replace(".", "/"): blocks[name] for name in network.graph.order})

    def forward(self, samples: Tree) -> Tree:
        """Return the head's output for samples [n, *shape] as the data set has them, several inputs in a dictionary; TypeError: they are of another type."""
        return cast(Head, self.block(self.graph.head)).returned(self.streams(samples)[self.graph.head])

    def streams(self, samples: Tree) -> Mapping[str, Streams]:
        """Return what each node gives, by name."""
        read = [samples[name] for name in self.facts.inputs] if self.facts.several_inputs else [samples]
        read = [as_stored(one, dtype) for one, (_, dtype) in zip(read, self.facts.inputs.values(), strict=True)]
        numerics = attrs.evolve(self.numerics, device=read[0].device)
        streams: dict[str, Streams] = {INPUT: tuple(map(numerics.prepare, read))}
        for name in self.graph.order:
            read = [stream for producer in self.graph.nodes[name].inputs for stream in streams[producer]]
            with numerics.arithmetic():
                outputs = self.block(name)(*read)
            streams[name] = numerics.canonicalize(outputs)
        return streams

    def block(self, name: str) -> Block:
        return cast(Block, self.nodes[name.replace(".", "/")])

    def load_weights(self, weights: Mapping[str, Tensor], source: str) -> None:
        """Give the nodes weights by their names in `weights.safetensors`; of tied ones, one of several is enough; SpecError: they are of another network."""
        states = {name: self.block(name).state_dict(keep_vars=True) for name in self.graph.order}
        own = {f"{name}{SEPARATOR}{key}": value for name, state in states.items() for key, value in state.items()}
        given = {key: value for key, value in own.items() if key in weights}
        found = set(map(id, given.values()))
        faults = [f"it has no {key}" for key, value in own.items() if id(value) not in found]
        others = [(key, list(weights[key].shape), list(value.shape)) for key, value in given.items()]
        faults += [f"{key} is {there}, and {here} here" for key, there, here in others if there != here]
        if faults:
            raise SpecError(f"{source} is of another network: {listed(faults)}")
        copy_weights(((name, self.block(name)) for name in self.graph.order), weights.get)


def as_stored(samples: Tensor, dtype: str) -> Tensor:
    """Return samples in the type of a data set: whole numbers of any type in that of whole numbers, real numbers in that of real ones.

    A network of uint8 divides by 255 and normalises; one of floats takes values as they come. So a TypeError refuses the other's.
    """
    wanted = getattr(torch, dtype)
    if samples.dtype == wanted:
        return samples
    real = wanted.is_floating_point
    fits = samples.is_floating_point() == real and samples.dtype != torch.bool and not samples.is_complex()
    if not fits or not (real or torch.equal(samples.to(wanted).long(), samples.long())):
        images = "; images are uint8 from 0 to 255, which the network itself normalises" if dtype == "uint8" else ""
        raise TypeError(f"the network reads {dtype} as the data set has it (got other values: {samples.dtype}){images}")
    return samples.to(wanted)


# --- weights to begin with ---
#
# A file of a run has node names with the names of parameters and buffers, as in `weights.safetensors`, so the stages may be others.
# A file of another program, such as a pretrained network's `state_dict`, knows no nodes: each of its tensors belongs to the one node
# that has a tensor of that name. Tensors of a block's `begun_anew` may be missing.

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
