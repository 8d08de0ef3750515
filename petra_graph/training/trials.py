"""Code of others, tried before a run on its own samples: reversible blocks of strangers, and networks that say which modules are their parts.

Both mistakes train silently. A wrong inverse reconstructs another input than there was; a part that leaves out a skip connection, or draws
by Python's `random`, computes another network than the one that its author wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from attrs import evolve
from torch import Tensor, nn

from petra_graph.blocks import Reversible, Shape, Streams, random_key
from petra_graph.errors import PluginError, Problem, SpecError
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.measure.nodes import initial_blocks, tie
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.author_code import author_code
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.generators import fork_generators, seed_generators
from petra_graph.plugins.tensor_trees import Tree, forms, inputs_of, leaves, mapped
from petra_graph.testing.block_checks import Draw, Trial, check_gradients, check_inverse, normal
from petra_graph.testing.promises import generator_states, outcome_of
from petra_graph.training.data import OpenedData
from petra_graph.training.trained_network import Network

MOST_SAMPLES = 8  # of the run, that a trial reads
_GRADIENTS = 1e-4  # the largest difference of a part's gradient, over its norm: uses are added in another order


def block_trials(network: MeasuredNetwork, data: OpenedData) -> Iterator[tuple[Node, Trial]]:
    """Yield one node of each block, set of options and shapes with its trial: real streams where it reads samples or integers."""
    graph, spec = network.graph, network.spec
    batch = min(MOST_SAMPLES, spec.data.batch, len(data.train))

    @cache
    def streams() -> Mapping[str, Streams]:
        with torch.no_grad():
            samples, _ = data.train.fetch(np.arange(batch), seed=0, epoch=0)
            return Network(network, data.facts).eval().streams(samples)

    def real(producer: str, at: int, _: Shape, __: torch.Generator) -> Tensor:
        return streams()[producer][at]

    def draws(node: Node) -> Iterator[Draw]:
        for producer in node.inputs:
            kinds = network.shapes[producer].dtypes if producer != INPUT else [None] * len(data.facts.inputs)
            for at, kind in enumerate(kinds):
                yield normal if kind is not None and kind.is_floating_point else partial(real, producer, at)

    tried: list[tuple[Any, ...]] = []
    for name in graph.order:
        node, inputs = graph.nodes[name], network.shapes[name].inputs
        key = (node.plugin, node.options, inputs)
        if node.plugin is not None and key not in tried:
            tried.append(key)
            layout, compute = spec.precision.memory_format, spec.precision.compute
            how: dict[str, Any] = {"seed": spec.run.seed, "memory_format": layout, "compute": compute}
            yield node, Trial(plugin=node.plugin, inputs=inputs, batch=batch, draw=[*draws(node)], **how)


def try_strangers(network: MeasuredNetwork, data: OpenedData) -> None:
    """Compare inverse and gradients of strangers' reversible blocks with their forward and plain autograd, on the CPU; PluginError: they differ, or one raised."""
    with fork_generators():
        for node, trial in block_trials(network, data):
            plugin = trial.plugin
            if plugin.is_first_party or node.kind != "reversible" or not issubclass(plugin.code, Reversible):
                continue
            for check in (check_inverse, check_gradients):
                if (found := outcome_of(check, trial)).status == "broken":
                    message = f'node "{node.name}": {plugin.owned} breaks a promise ({found.check}): {found.found}'
                    hint = "`petra-graph check` with this specification makes all checks of its blocks"
                    raise PluginError(Problem(message=message, hint=hint, path=node.path))


def try_parts(network: MeasuredNetwork, data: OpenedData) -> None:
    """Compare the nodes of a network with the module of which they are the parts; SpecError: they differ."""
    if any(node.plugin and node.plugin.code.drawn_as for node in network.graph.nodes.values()):
        split = data.by_index
        rows = np.arange(min(MOST_SAMPLES, len(split) - len(split) % 2))
        samples, _ = split.fetch(rows, seed=network.spec.run.seed, epoch=0)
        with author_code("the network, tried on its first samples", error=SpecError):
            compare_parts(network, data.facts, samples)


@uncompiled()
def compare_parts(network: MeasuredNetwork, facts: DataFacts, samples: Tree) -> None:
    """Compare the nodes of a network with the module of which they are the parts, on two samples or more, as the data set stores them; SpecError: they differ."""
    graph, seed = network.graph, network.spec.run.seed
    blocks: dict[str, Any] = dict(initial_blocks(graph, network.shapes, seed, graph.nodes))
    if len(makers := {block.of_network for block in blocks.values()}) > 1:
        return
    tie(blocks, network.shapes)
    with fork_generators():
        # As the parts were: a constructor may draw what is no parameter, such as an order of features.
        seed_generators(random_key(seed, blocks[graph.head].drawn_as, "initial"))
        whole: nn.Module = makers.pop()().train()
        seed_generators(seed)
        precision = evolve(network.spec.precision, compute="float32", memory_format="contiguous")
        numerics = evolve(NumericsContext.of_run(network.spec, facts), precision=precision)
        half = len(inputs_of(samples)[0]) // 2
        halves = (inputs_of(mapped(itemgetter(slice(at, at + half)), samples)) for at in (0, half))
        read = [tuple(map(numerics.prepare, one)) for one in halves]
        blocks = {name: place(block, numerics) for name, block in blocks.items()}
        with torch.no_grad():  # drawn anew, since initial zeros hide what they multiply
            for parameter in filter(torch.is_floating_point, whole.parameters()):
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
            for _, one, own in _of_one_name(whole, blocks):
                own.copy_(one)
        for found, ours in _returned(whole, blocks, graph, read):
            weights = [torch.randn_like(one) for one in found]
            for tree in (found, ours):
                sums = [(one * by).sum() for one, by in zip(tree, weights, strict=True)]
                torch.autograd.backward(torch.stack(sums).sum())
        for where, one, own in _of_one_name(whole, blocks):
            what, values = "buffer", [one, own]
            if isinstance(own, nn.Parameter):  # no gradient is one of zeros
                what, trained = "gradient", [each for each in (one, own) if each.requires_grad]
                values = [torch.zeros_like(each) if each.grad is None else each.grad.to_dense() for each in trained]
            if len(values) > 1 and not _close(values[0], values[1], _GRADIENTS):
                raise _refused(f"in its part {where}: the {what} is another than in the module itself")
        for module in (whole, *blocks.values()):
            module.eval()
        with torch.no_grad():
            _returned(whole, blocks, graph, read[:1])


def _of_one_name(whole: nn.Module, blocks: Mapping[str, nn.Module]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the place, and the two tensors, of what the module and one of its parts have by one name."""

    def tensors(module: nn.Module) -> dict[str, Tensor]:
        own = dict[str, Tensor](module.named_parameters(remove_duplicate=False))
        return own | dict(module.named_buffers(remove_duplicate=False))

    of_whole = tensors(whole)
    for name, block in blocks.items():
        for key, own in tensors(block).items():
            if key in of_whole and own.shape == of_whole[key].shape:
                yield f"{name!r}, {key}", of_whole[key], own


def _returned(
    whole: nn.Module, blocks: Mapping[str, Any], graph: NodeGraph, read: Sequence[Streams]
) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Run module and parts on the same micro-batches with the same random numbers; return what both return of real numbers, or refuse what differs."""
    # All micro-batches go through a part before the next part, as in a pipeline, so that what one leaves behind for another shows.
    known: list[dict[str, Streams]] = [{INPUT: one} for one in read]
    states: list[Tensor] = []
    for number in range(len(read)):
        seed_generators(number)
        states.append(torch.get_rng_state())
    for name in graph.order:
        for number, streams in enumerate(known):
            given = [one for producer in graph.nodes[name].inputs for one in streams[producer]]
            torch.set_rng_state(states[number])
            coupled = isinstance(blocks[name], Reversible)
            # A coupled part gives the state before it as well: its own value counts.
            streams[name] = (blocks[name].residual(given[0]), given[0]) if coupled else blocks[name](*given)
            states[number] = torch.get_rng_state()
    returned: list[tuple[list[Tensor], list[Tensor]]] = []
    for number, (one, own) in enumerate(zip(read, known, strict=True)):
        seed_generators(number)
        before = generator_states()
        found, ours = whole(*one), blocks[graph.head].returned(own[graph.head])
        moved = [name for name, now in generator_states().items() if name != "torch" and now != before[name]]
        if moved or not torch.equal(states[number], torch.get_rng_state()):
            hint = "draw with torch, in a module that is a part: a part runs twice, with the same random numbers"
            by = f"the global generator of {moved[0]}" if moved else "torch's generator"
            raise _refused(f"its forward draws from {by}, and its parts draw otherwise", hint)
        if forms(leaves(found)) != forms(leaves(ours)) or not all(map(_close, leaves(found), leaves(ours))):
            when = "in training" if whole.training else "in evaluation"
            raise _refused(f"{when}, its parts return {forms(ours)} with other values than its forward: {forms(found)}")
        real = [[each for each in leaves(tree) if each.is_floating_point()] for tree in (found, ours)]
        returned.append((real[0], real[1]))
    return returned


def _refused(message: str, hint: str = "") -> SpecError:
    usual = "let nodes() return what its forward does, part by part; without nodes(), the network is one node"
    return SpecError(Problem(message=message, hint=hint or usual, path=("architecture",)))


def _close(one: Tensor, other: Tensor, share: float = 0.0) -> bool:
    """Whether tensors differ by at most a share of their norm."""
    one, other = one.detach().double(), other.detach().double()
    return torch.allclose(one, other, rtol=0, atol=share * float(one.nan_to_num().norm()), equal_nan=True)
