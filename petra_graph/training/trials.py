"""The streams between the nodes of a network that has not been trained, for given samples, on the CPU and in evaluation mode.

Node by node, so that one node's parameters are in memory at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from petra_graph.blocks import Block, Reversible, Shape, Streams
from petra_graph.errors import PluginError, Problem
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.graph.node_graph import INPUT, Node, NodeGraph
from petra_graph.measure.build_block import initial_block
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.checked_samples import CheckedData
from petra_graph.plugins.contract import load
from petra_graph.plugins.generators import fork_generators
from petra_graph.plugins.tensor_trees import Tree, inputs_of
from petra_graph.testing.block_checks import check_gradients, check_inverse
from petra_graph.testing.block_trial import Trial, normal
from petra_graph.testing.examination import outcome_of

if TYPE_CHECKING:
    from petra_graph.training.prepare import Prepared

from collections.abc import Iterable, Sequence

from attrs import evolve
from torch import nn

from petra_graph.blocks import Head
from petra_graph.errors import SpecError
from petra_graph.measure.build_block import initial_blocks, tie
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.generators import drawn_without_key, seed_generators, states_without_key
from petra_graph.plugins.tensor_trees import leaves, mapped, shapes


@torch.no_grad()
def streams_of_samples(
    graph: NodeGraph,
    samples: Tree,
    numerics: NumericsContext,
    *,
    among: Container[str] | None = None,
) -> Mapping[str, Streams]:
    """Run nodes on samples, and return what each gives.

    Args:
        graph: the network.
        samples: as the data set stores them.
        numerics: of the CPU, with the run's seed.
        among: the nodes that are run, with all that they read; None: all.
    """
    streams: dict[str, Streams] = {INPUT: tuple(map(numerics.prepare, inputs_of(samples)))}

    def read_by(name: str) -> list[Tensor]:
        return [stream for producer in graph.nodes[name].inputs for stream in streams[producer]]

    def blocks() -> Iterator[tuple[str, Block]]:
        for name in graph.order:
            if among is None or name in among:
                shapes = [tuple(stream.shape[1:]) for stream in read_by(name)]
                yield name, place(initial_block(graph.nodes[name], shapes, numerics.seed), numerics)

    for name, block in blocks():
        block.eval()
        with numerics.arithmetic():
            streams[name] = numerics.canonicalize(block(*read_by(name)))
    return streams


# --- Blocks of strangers in a run: reversible ones are inverted once before it, at the shapes that they have there and in its precision.
#
# A wrong inverse trains silently; nothing else that a block does wrong is as dangerous. Blocks of this project are tried by its own tests.


_BATCH = 8
"""Samples of a trial, at most."""
_OF_GRADIENTS = {"float64": 2**12, "float32": 2**17, "bfloat16": 2**5}
"""Units of rounding by which gradients may be off, behind a reconstructed input in that precision."""


def block_trials(network: MeasuredNetwork, data: CheckedData) -> Iterator[tuple[Node, Trial]]:
    """Yield one node of each block, set of options and shapes with its trial: real streams where it reads samples or integers."""
    graph, batch = network.graph, min(_BATCH, network.spec.data.batch, len(data.train))
    numerics = NumericsContext.of_run(network.spec, data.facts)
    tried: list[tuple[Any, ...]] = []

    def trial(node: Node, inputs: tuple[Shape, ...]) -> Trial:
        samples, streams = None, itertools.count()

        def draw(shape: Shape, generator: torch.Generator) -> torch.Tensor:
            nonlocal samples
            producer, place = sources[next(streams) % len(sources)]
            if producer != INPUT and network.shapes[producer].dtypes[place].is_floating_point:
                return normal(shape, generator)
            if samples is None:
                samples = data.train.fetch(np.arange(batch), seed=0, epoch=0)[0]
            if producer == INPUT:
                return numerics.prepare(inputs_of(samples)[place])
            among = nx.ancestors(graph.digraph, producer) | {producer}
            return streams_of_samples(graph, samples, numerics, among=among)[producer][place]

        sources = [
            (producer, place)
            for producer in node.inputs
            for place in range(len(data.facts.inputs) if producer == INPUT else len(network.shapes[producer].outputs))
        ]
        assert node.plugin is not None
        return Trial(
            plugin=node.plugin,
            options=node.options,
            inputs=inputs,
            batch=batch,
            draw=draw,
            seed=numerics.seed,
            memory_format=network.spec.precision.memory_format,
        )

    for name in graph.order:
        node, inputs = graph.nodes[name], network.shapes[name].inputs
        key = (node.plugin, node.options, inputs)
        if node.plugin is not None and key not in tried:
            tried.append(key)
            yield node, trial(node, inputs)


def try_strangers(prepared: Prepared) -> None:
    """Compare inverse and gradients of strangers' reversible blocks with their forward and plain autograd, on the CPU.

    Raises:
        PluginError: they differ, or the block raised.
    """
    compute = prepared.spec.precision.compute
    with fork_generators():
        for node, trial in block_trials(prepared.network, prepared.opened.data):
            if (
                trial.plugin.is_first_party
                or node.kind != "reversible"
                or not issubclass(load(trial.plugin), Reversible)
            ):
                continue
            found = outcome_of(partial(check_inverse, computes=[compute]), "inverse", trial)
            if found.status == "kept":
                gradients = partial(check_gradients, compute=compute, allowed=_OF_GRADIENTS[compute])
                found = outcome_of(gradients, "gradients", trial)
            if found.status == "broken":
                message = f'node "{node.name}": {trial.plugin.owned} breaks a promise ({found.check}): {found.found}'
                hint = "`petra-graph check` with this specification makes all checks of its blocks"
                raise PluginError(Problem(message=message, hint=hint, path=node.path))


# --- The parts of a network beside the network itself: whether nodes that are run as they are compute what its forward computes.
#
# Parts that are wrong train silently: a skip connection left out, a mean in the forward of the network that no part has, a layer that
# drops out by Python's `random`. So both are run on samples of the run, with parameters that are drawn anew, since zeros hide what they multiply;
# in training on two micro-batches, the parts in turns, as a pipeline runs them, so that what one part leaves behind for another shows; and in
# evaluation, in the run's memory format.


MOST_SAMPLES = 8
"""Of the run, that are compared: two micro-batches of half as many."""
_GRADIENTS = 1e-4
"""Largest difference of a gradient, over its norm: sums of several uses are added in another order."""
_FORMATS = 1e-3
"""The same of outputs in another memory format."""


@uncompiled()
def compare_parts(network: MeasuredNetwork, facts: DataFacts, samples: Tree) -> None:
    """Compare the nodes of a network with the module of which they are the parts; nothing if its nodes are blocks of their own.

    Args:
        network: of the run.
        facts: of its data set.
        samples: of the training, as the data set stores them; at least two.

    Raises:
        SpecError: they differ; the message names the first part that does.
    """
    blocks = initial_blocks(network.graph, network.shapes, network.spec.run.seed, network.graph.nodes)
    makers = {block.of_network for block in blocks.values()}
    if len(makers) != 1 or (make := makers.pop()) is None or not hasattr(blocks[network.graph.head], "parts_of"):
        return
    tie(blocks, network.shapes)
    with fork_generators():
        seed_generators(network.spec.run.seed)
        _Comparison(network, facts, blocks, make()).run(samples)


class _Comparison:
    def __init__(
        self, network: MeasuredNetwork, facts: DataFacts, blocks: Mapping[str, Block], whole: nn.Module
    ) -> None:
        precision = evolve(network.spec.precision, compute="float32")
        of_run = evolve(NumericsContext.of_run(network.spec, facts), precision=precision)
        self.of_run = of_run
        self.numerics = evolve(of_run, precision=evolve(precision, memory_format="contiguous"))
        self.network, self.whole = network, whole
        self.blocks = {name: place(block, self.numerics) for name, block in blocks.items()}
        head: Any = blocks[network.graph.head]
        self.parts: Mapping[str, nn.Module] = head.parts_of(whole)

    def run(self, samples: Tree) -> None:
        half = len(inputs_of(samples)[0]) // 2
        batches = [mapped(partial(_rows, start=start, stop=start + half), samples) for start in (0, half)]
        self.whole.train()
        self._draw_anew()
        read = [tuple(map(self.numerics.prepare, inputs_of(one))) for one in batches]
        found, made, states = self._whole(read)
        outputs, values = self._in_turns(read, states)
        self._expect_alike("in training", zip(found, outputs, strict=True), made, values)
        weights = [[torch.randn_like(one) for one in _floats(tree)] for tree in found]
        gradients = [
            self._gradients(module, trees, weights) for module, trees in ((self.whole, found), (None, outputs))
        ]
        self._expect_same_tensors("gradient", *gradients)
        self._expect_same_tensors("buffer", dict(self.whole.named_buffers(remove_duplicate=False)), self._buffers())
        self.whole.eval()
        with torch.no_grad():
            found, made, _ = self._whole(read[:1])
            self.blocks = {name: place(block, self.of_run) for name, block in self.blocks.items()}
            for block in self.blocks.values():
                block.eval()
            outputs, values = self._in_turns([tuple(map(self.of_run.prepare, inputs_of(batches[0])))], None)
        self._expect_alike("in evaluation", zip(found, outputs, strict=True), made, values, tolerance=_FORMATS)

    @torch.no_grad()
    def _draw_anew(self) -> None:
        """Move all parameters away from their initial values, and give blocks and module the same tensors."""
        own = dict(_named_tensors(self.whole))
        for parameter in self.whole.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
        for block in self.blocks.values():
            for name, one in _named_tensors(block):
                if name in own and one.shape == own[name].shape:
                    one.copy_(own[name])

    def _whole(self, read: Sequence[Streams]) -> tuple[list[Tree], Mapping[str, list[Any]], list[Any]]:
        """Return what the module makes of micro-batches, what its parts made of each, and the generators' states behind each."""
        made: dict[str, list[Any]] = {name: [] for name in self.network.graph.nodes}
        hooks = [
            self.parts[name].register_forward_hook(lambda *called, name=name: made[name].append(called[-1]))
            for name in made
            if name in self.parts and self.parts[name] is not self.whole
        ]
        found, states = [], []
        for number, streams in enumerate(read):
            seed_generators(number)
            found.append(self.whole(*streams))
            states.append((torch.get_rng_state(), states_without_key()))
        for hook in hooks:
            hook.remove()
        return found, made, states

    def _in_turns(
        self, read: Sequence[Streams], states: Sequence[Any] | None
    ) -> tuple[list[Tree], Mapping[str, list[Streams]]]:
        """Return what the parts make of micro-batches, each part of all of them before the next part, and each part's values."""
        graph = self.network.graph
        streams = [{INPUT: one} for one in read]
        values: dict[str, list[Streams]] = {}
        now = []
        for number in range(len(read)):
            seed_generators(number)
            now.append(torch.get_rng_state())
        seed_generators(0)
        outside = states_without_key()
        for name in graph.order:
            block = self.blocks[name]
            for number, known in enumerate(streams):
                given = tuple(one for producer in graph.nodes[name].inputs for one in known[producer])
                torch.set_rng_state(now[number])
                try:
                    known[name] = _forward(block, given)
                except Exception as error:
                    raise self._refused(f"its part {name!r} fails: {type(error).__name__}: {error}") from error
                now[number] = torch.get_rng_state()
            if drawn := drawn_without_key(outside):
                hint = "a part runs twice, and would draw others: draw with torch"
                raise self._refused(f"its part {name!r} draws from {drawn[0]}", hint)
            values[name] = [known[name] for known in streams]
        head = self.blocks[graph.head]
        assert isinstance(head, Head)
        outputs = [head.returned(one) for one in values[graph.head]]
        for number, state in enumerate(states or ()):
            seed_generators(number)
            drawn = drawn_without_key(state[1])
            if drawn or not torch.equal(now[number], state[0]):
                by = drawn[0] if drawn else "torch's generator"
                hint = "its forward draws what no part draws: put it into a module that is a part"
                raise self._refused(f"its forward draws from {by}, and its parts draw otherwise", hint)
        return outputs, values

    def _expect_alike(
        self,
        when: str,
        returned: Iterable[tuple[Tree, Tree]],
        made: Mapping[str, Sequence[Any]],
        values: Mapping[str, Sequence[Streams]],
        *,
        tolerance: float = 0.0,
    ) -> None:
        for name in self.network.graph.order:
            if len(made[name]) == len(values[name]):
                pairs = zip(made[name], values[name], strict=True)
                if not all(_alike(leaves(one), own, tolerance, first=True) for one, own in pairs):
                    raise self._refused(
                        f"{when}, its part {name!r} computes something else than in the module's forward"
                    )
        for one, own in returned:
            if not _alike(leaves(one), leaves(own), tolerance):
                raise self._refused(
                    f"{when}, its parts return {shapes(own)} with other values than its forward: {shapes(one)}"
                )

    def _gradients(
        self, whole: nn.Module | None, trees: Sequence[Tree], weights: Sequence[Sequence[Tensor]]
    ) -> Mapping[str, Tensor | None]:
        for tree, factors in zip(trees, weights, strict=True):
            total = sum(((one * by).sum() for one, by in zip(_floats(tree), factors, strict=True)), torch.zeros(()))
            if total.requires_grad:
                total.backward()  # type: ignore[no-untyped-call]
        modules = self.blocks.values() if whole is None else [whole]
        return {
            name: one.grad
            for module in modules
            for name, one in module.named_parameters(remove_duplicate=False)
            if one.requires_grad
        }

    def _buffers(self) -> Mapping[str, Tensor]:
        return {
            name: one for block in self.blocks.values() for name, one in block.named_buffers(remove_duplicate=False)
        }

    def _expect_same_tensors(
        self, what: str, found: Mapping[str, Tensor | None], own: Mapping[str, Tensor | None]
    ) -> None:
        for name in self.network.graph.order:
            for key, _ in _named_tensors(self.blocks[name]):
                if key in own and key in found and not _close(found[key], own[key], _GRADIENTS):
                    raise self._refused(
                        f"in its part {name!r}, the {what} of {key} is another than in the module itself"
                    )

    def _refused(self, message: str, hint: str = "") -> SpecError:
        usual = (
            "let nodes() return what its forward does, part by part: operations between two modules belong in a module; "
            "without nodes(), the network is one node"
        )
        build = getattr(next(iter(self.network.graph.nodes.values())).options, "build", "the network")
        return SpecError(Problem(message=f"{build}: {message}", hint=hint or usual, path=("architecture",)))


def _forward(block: Block, given: Streams) -> Streams:
    """Return a block's streams; of a coupled part its own value, and the state before it."""
    if isinstance(block, Reversible):
        residual: Any = block.residual
        return residual(given[0]), given[0]
    return block(*given)


def _rows(one: Tensor, start: int, stop: int) -> Tensor:
    return one[start:stop]


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _floats(tree: Tree) -> list[Tensor]:
    return [one for one in leaves(tree) if one.is_floating_point()]


def _alike(found: Sequence[Tensor], own: Sequence[Tensor], tolerance: float, *, first: bool = False) -> bool:
    """Whether tensors are equal, or differ by a share of their norm; `first`: of a coupled part's streams, its value counts."""
    if first and len(own) > len(found):
        own = own[: len(found)]
    return len(found) == len(own) and all(
        one.shape == other.shape and one.dtype == other.dtype and _close(one, other, tolerance)
        for one, other in zip(found, own, strict=True)
    )


def _close(one: Tensor | None, other: Tensor | None, tolerance: float) -> bool:
    """Whether tensors differ by at most a share of their norm; no gradient is one of zeros."""
    one, other = (None if given is None else given.detach().to_dense() for given in (one, other))
    if one is None or other is None:
        given = one if other is None else other
        return given is None or not given.count_nonzero()
    if torch.equal(one, other) or not tolerance or not one.is_floating_point():
        return bool(torch.equal(one, other)) or bool(
            one.isnan().equal(other.isnan()) and one.nan_to_num().equal(other.nan_to_num())
        )
    return bool((one.double() - other.double()).norm() <= tolerance * one.double().norm())


def has_parts(network: MeasuredNetwork) -> bool:
    """Whether nodes are parts of a module, which can be compared with it."""
    return any(hasattr(node.options, "drawn_as") for node in network.graph.nodes.values())


def first_samples(data: CheckedData, seed: int) -> Tree:
    """Return a few samples for the comparison; of a stream, which begins once, those of the test."""
    split = data.test if data.train.in_order else data.train
    indices = np.arange(min(MOST_SAMPLES, len(split) - len(split) % 2))
    return split.fetch(indices, seed=seed, epoch=0)[0]
