"""A trained network as an ordinary module: samples in, the head's output out.

In evaluation mode a forward gives the bits of the run's own evaluations: the arithmetic between nodes is the executors'
(`executor.numerics`). It is plain autograd, so the module can also be trained further, in anyone's loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import attrs
import torch
from torch import Tensor, nn

from petra_graph.blocks import Block, Head, Streams
from petra_graph.errors import SpecError
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.graph.node_graph import INPUT
from petra_graph.measure.nodes import initial_blocks, tie
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.tensor_trees import Tree
from petra_graph.record.weights import SEPARATOR, copy_weights
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
