"""Code of others, tried before a run on its own samples: reversible blocks of strangers, and networks that say which modules are their parts.

Both mistakes train silently. A wrong inverse reconstructs another input than there was; a part that leaves out a skip connection, or draws
by Python's `random`, computes another network than the one that its author wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from attrs import evolve
from torch import Tensor, nn

from petra_graph.blocks import Block, Reversible, Streams, random_key
from petra_graph.errors import PluginError, Problem, SpecError
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.measure.build_block import initial_block, initial_blocks, tie
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.generators import fork_generators, seed_generators
from petra_graph.plugins.tensor_trees import Tree, inputs_of, leaves, mapped, shapes
from petra_graph.testing.block_checks import Draw, Trial, check_gradients, check_inverse, normal
from petra_graph.testing.promises import generator_states, outcome_of
from petra_graph.training.data import CheckedData

MOST_SAMPLES = 8
"""Of the run, that a trial reads."""
_GRADIENTS = 1e-4
"""Largest difference of a gradient of a part, over its norm: sums of several uses are added in another order."""
_USUAL = (
    "let nodes() return what its forward does, part by part: operations between two modules belong in a module; without nodes(), the "
    "network is one node"
)


def block_trials(network: MeasuredNetwork, data: CheckedData) -> Iterator[tuple[Node, Trial]]:
    """Yield one node of each block, set of options and shapes with its trial: real streams where it reads samples or integers."""
    graph, spec = network.graph, network.spec
    batch = min(MOST_SAMPLES, spec.data.batch, len(data.train))
    numerics = NumericsContext.of_run(spec, data.facts)
    tried: list[tuple[Any, ...]] = []

    @cache
    def streams_of(name: str) -> Streams:
        """Return what a node gives for the first samples, without training and in evaluation."""
        if name == INPUT:
            return tuple(map(numerics.prepare, inputs_of(data.train.fetch(np.arange(batch), seed=0, epoch=0)[0])))
        read = [stream for producer in graph.nodes[name].inputs for stream in streams_of(producer)]
        begun = initial_block(graph.nodes[name], [tuple(stream.shape[1:]) for stream in read], numerics.seed)
        block = place(begun, numerics).eval()
        with torch.no_grad(), numerics.arithmetic():
            return numerics.canonicalize(block(*read))

    def draw_of(producer: str, at: int) -> Draw:
        if producer != INPUT and network.shapes[producer].dtypes[at].is_floating_point:
            return normal
        return lambda *_: streams_of(producer)[at]

    for name in graph.order:
        node, inputs = graph.nodes[name], network.shapes[name].inputs
        key = (node.plugin, node.options, inputs)
        if node.plugin is None or key in tried:
            continue
        tried.append(key)
        count = {one: len(data.facts.inputs if one == INPUT else network.shapes[one].outputs) for one in node.inputs}
        yield (
            node,
            Trial(
                plugin=node.plugin,
                inputs=inputs,
                batch=batch,
                draw=[draw_of(producer, at) for producer in node.inputs for at in range(count[producer])],
                seed=numerics.seed,
                memory_format=spec.precision.memory_format,
                compute=spec.precision.compute,
            ),
        )


def try_strangers(network: MeasuredNetwork, data: CheckedData) -> None:
    """Compare inverse and gradients of strangers' reversible blocks with their forward and plain autograd, on the CPU.

    They have the shapes and the precision of the run. Blocks of this project are tried by its own tests.

    Raises:
        PluginError: they differ, or the block raised.
    """
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


def try_parts(network: MeasuredNetwork, data: CheckedData) -> None:
    """Compare the nodes of a network with the module of which they are the parts, on a few samples; of a stream, which begins once, those of the test.

    Raises:
        SpecError: they differ.
    """
    if any(node.plugin and node.plugin.code.drawn_as for node in network.graph.nodes.values()):
        split = data.test if data.train.in_order else data.train
        rows = np.arange(min(MOST_SAMPLES, len(split) - len(split) % 2))
        compare_parts(network, data.facts, split.fetch(rows, seed=network.spec.run.seed, epoch=0)[0])


@uncompiled()
def compare_parts(network: MeasuredNetwork, facts: DataFacts, samples: Tree) -> None:
    """Compare the nodes of a network with the module of which they are the parts; nothing if its nodes are blocks of their own.

    Parameters are drawn anew, since zeros hide what they multiply. In training, two micro-batches go through the parts in turns, as in a
    pipeline, so that what one part leaves behind for another shows; in evaluation, one does.

    Args:
        network: of the run.
        facts: of its data set.
        samples: of the training, as the data set stores them; at least two.

    Raises:
        SpecError: they differ; the message names the first part that does.
    """
    graph, seed = network.graph, network.spec.run.seed
    blocks: dict[str, Any] = dict(initial_blocks(graph, network.shapes, seed, graph.nodes))
    head = blocks[graph.head]
    if len(makers := {block.of_network for block in blocks.values()}) > 1 or not hasattr(head, "parts_of"):
        return
    tie(blocks, network.shapes)
    with fork_generators():
        # As the parts were: a constructor may draw what is no parameter, such as an order of features.
        seed_generators(random_key(seed, head.drawn_as, "initial"))
        whole: nn.Module = makers.pop()()
        seed_generators(seed)

        def refused(message: str, hint: str = _USUAL) -> SpecError:
            build = getattr(graph.nodes[graph.head].options, "build", "the network")
            return SpecError(Problem(message=f"{build}: {message}", hint=hint, path=("architecture",)))

        precision = evolve(network.spec.precision, compute="float32", memory_format="contiguous")
        numerics = evolve(NumericsContext.of_run(network.spec, facts), precision=precision)
        half = len(inputs_of(samples)[0]) // 2
        batches = [inputs_of(mapped(itemgetter(slice(at, at + half)), samples)) for at in (0, half)]
        read = [tuple(map(numerics.prepare, one)) for one in batches]

        whole.train()
        blocks = {name: place(block, numerics) for name, block in blocks.items()}
        _draw_anew(whole, blocks)
        for found, own in _compared(whole, blocks, graph, read, refused):
            weights = [torch.randn_like(one) for one in _floats(found)]
            for tree in (found, own):
                used = [pair for pair in zip(_floats(tree), weights, strict=True) if pair[0].requires_grad]
                torch.autograd.backward([one for one, _ in used], [weight for _, weight in used])
        for what in ("gradient", "buffer"):
            of_whole = dict(_tensors(whole, what))
            for name in graph.order:
                for key, one in _tensors(blocks[name], what):
                    if key in of_whole and not _close(of_whole[key], one, _GRADIENTS):
                        raise refused(f"in its part {name!r}, the {what} of {key} is another than in the module itself")

        for module in (whole, *blocks.values()):
            module.eval()
        with torch.no_grad():
            _compared(whole, blocks, graph, read[:1], refused)


def _draw_anew(whole: nn.Module, blocks: Mapping[str, Block]) -> None:
    """Move all parameters away from their initial values, and give blocks and module the same tensors."""
    with torch.no_grad():
        for parameter in whole.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
        of_whole = dict(_tensors(whole))
        for block in blocks.values():
            for name, one in _tensors(block):
                if name in of_whole and one.shape == of_whole[name].shape:
                    one.copy_(of_whole[name])


def _in_turns(
    blocks: Mapping[str, Any], graph: NodeGraph, read: Sequence[Streams]
) -> tuple[list[dict[str, Streams]], list[Tensor]]:
    """Return what each part makes of micro-batches, all of them before the next part, and torch's generator behind each."""
    states: list[Tensor] = []
    known: list[dict[str, Streams]] = [{INPUT: one} for one in read]
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
    return known, states


def _compared(
    whole: nn.Module,
    blocks: Mapping[str, Any],
    graph: NodeGraph,
    read: Sequence[Streams],
    refused: Callable[..., SpecError],
) -> list[tuple[Tree, Tree]]:
    """Run parts and module on the same micro-batches with the same random numbers; return what both return of each.

    Raises:
        SpecError: a part makes other values than in the module, or draws otherwise.
    """
    known, states = _in_turns(blocks, graph, read)
    when = "in training" if whole.training else "in evaluation"
    made: list[tuple[str, Any]] = []
    for name, part in blocks[graph.head].parts_of(whole).items():
        if name in blocks and part is not whole:
            part.register_forward_hook(lambda *called, name=name: made.append((name, called[-1])))
    returned: list[tuple[Tree, Tree]] = []
    for one, own, state in zip(read, known, states, strict=True):
        seed_generators(len(returned))
        before = generator_states()
        found = whole(*one)
        moved = [name for name, now in generator_states().items() if name != "torch" and now != before[name]]
        if moved or not torch.equal(state, torch.get_rng_state()):
            hint = "draw with torch, in a module that is a part: a part runs twice, with the same random numbers"
            by = f"the global generator of {moved[0]}" if moved else "torch's generator"
            raise refused(f"its forward draws from {by}, and its parts draw otherwise", hint)
        calls = [name for name, _ in made]
        for name, value in made:
            ours = own[name][: len(leaves(value))]
            if calls.count(name) == 1 and not _alike(leaves(value), ours):
                raise refused(f"{when}, its part {name!r} computes something else than in the module's forward")
        made.clear()
        ours = blocks[graph.head].returned(own[graph.head])
        if not _alike(leaves(found), leaves(ours)):
            raise refused(
                f"{when}, its parts return {shapes(ours)} with other values than its forward: {shapes(found)}"
            )
        returned.append((found, ours))
    return returned


def _tensors(module: nn.Module, what: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield a module's parameters and buffers by name, or only its buffers, or the gradients of its parameters; no gradient is one of zeros."""
    if what != "buffer":
        for name, one in module.named_parameters(remove_duplicate=False):
            if not what:
                yield name, one
            elif one.requires_grad:
                yield name, torch.zeros_like(one) if one.grad is None else one.grad.to_dense()
    if what != "gradient":
        yield from module.named_buffers(remove_duplicate=False)


def _floats(tree: Tree) -> list[Tensor]:
    return [one for one in leaves(tree) if one.is_floating_point()]


def _alike(found: Sequence[Tensor], own: Sequence[Tensor]) -> bool:
    return len(found) == len(own) and all(
        one.shape == other.shape and one.dtype == other.dtype and _close(one, other)
        for one, other in zip(found, own, strict=True)
    )


def _close(one: Tensor, other: Tensor, share: float = 0.0) -> bool:
    """Whether tensors differ by at most a share of their norm."""
    one, other = one.detach().double(), other.detach().double()
    return torch.allclose(one, other, rtol=0, atol=share * float(one.nan_to_num().norm()), equal_nan=True)
