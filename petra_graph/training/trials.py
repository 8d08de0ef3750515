"""Code of others, tried before a run on its own samples: reversible blocks of strangers, and networks that say which modules are their parts.

Both mistakes train silently. A wrong inverse reconstructs another input than there was; a part that leaves out a skip connection, or draws
by Python's `random`, computes another network than the one that its author wrote.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attrs import evolve
from torch import Tensor, nn

from petra_graph.blocks import Block, Reversible, Shape, Streams, random_key
from petra_graph.errors import PluginError, Problem, SpecError
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.graph.node_graph import INPUT, Node
from petra_graph.measure.build_block import initial_block, initial_blocks, tie
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.planning.network import MeasuredNetwork
from petra_graph.plugins.checked_samples import CheckedData
from petra_graph.plugins.data_set import DataFacts
from petra_graph.plugins.generators import drawn_without_key, fork_generators, seed_generators, states_without_key
from petra_graph.plugins.tensor_trees import Tree, inputs_of, leaves, mapped, shapes
from petra_graph.testing import outcome_of
from petra_graph.testing.block_checks import check_gradients, check_inverse
from petra_graph.testing.block_trial import Trial, normal

if TYPE_CHECKING:
    from petra_graph.training.prepare import Prepared

MOST_SAMPLES = 8
"""Of the run, that a trial reads."""
_GRADIENTS = 1e-4
"""Largest difference of a gradient of a part, over its norm: sums of several uses are added in another order."""
_FORMATS = 1e-3
"""The same of outputs in another memory format."""


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

    def draw(sources: Sequence[tuple[str, int]], turns: Iterator[int], shape: Shape, by: torch.Generator) -> Tensor:
        producer, at = sources[next(turns) % len(sources)]
        if producer != INPUT and network.shapes[producer].dtypes[at].is_floating_point:
            return normal(shape, by)
        return streams_of(producer)[at]

    for name in graph.order:
        node, inputs = graph.nodes[name], network.shapes[name].inputs
        key = (node.plugin, node.options, inputs)
        if node.plugin is None or key in tried:
            continue
        tried.append(key)
        count = {one: len(data.facts.inputs if one == INPUT else network.shapes[one].outputs) for one in node.inputs}
        sources = [(producer, at) for producer in node.inputs for at in range(count[producer])]
        trial = Trial(
            plugin=node.plugin,
            options=node.options,
            inputs=inputs,
            batch=batch,
            draw=partial(draw, sources, itertools.count()),
            seed=numerics.seed,
            memory_format=spec.precision.memory_format,
            compute=spec.precision.compute,
        )
        yield node, trial


def try_strangers(prepared: Prepared) -> None:
    """Compare inverse and gradients of strangers' reversible blocks with their forward and plain autograd, on the CPU.

    They have the shapes and the precision of the run. Blocks of this project are tried by its own tests.

    Raises:
        PluginError: they differ, or the block raised.
    """
    checks = {"inverse": check_inverse, "gradients": check_gradients}
    with fork_generators():
        for node, trial in block_trials(prepared.network, prepared.opened.data):
            if (
                trial.plugin.is_first_party
                or node.kind != "reversible"
                or not issubclass(trial.plugin.code, Reversible)
            ):
                continue
            found = (outcome_of(check, name, trial) for name, check in checks.items())
            if (broken := next((one for one in found if one.status == "broken"), None)) is not None:
                message = f'node "{node.name}": {trial.plugin.owned} breaks a promise ({broken.check}): {broken.found}'
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


def compare_parts(network: MeasuredNetwork, facts: DataFacts, samples: Tree) -> None:
    """Compare the nodes of a network with the module of which they are the parts; nothing if its nodes are blocks of their own.

    Parameters are drawn anew, since zeros hide what they multiply. In training, two micro-batches go through the parts in turns, as in a
    pipeline, so that what one part leaves behind for another shows; in evaluation, one does in the run's memory format.

    Args:
        network: of the run.
        facts: of its data set.
        samples: of the training, as the data set stores them; at least two.

    Raises:
        SpecError: they differ; the message names the first part that does.
    """
    with uncompiled():
        blocks = initial_blocks(network.graph, network.shapes, network.spec.run.seed, network.graph.nodes)
        makers = {block.of_network for block in blocks.values()}
        if len(makers) == 1 and (make := makers.pop()) is not None and hasattr(blocks[network.graph.head], "parts_of"):
            tie(blocks, network.shapes)
            seed = network.spec.run.seed
            with fork_generators():
                # As the parts were: a constructor may draw what is no parameter, such as an order of features.
                seed_generators(random_key(seed, blocks[network.graph.head].drawn_as, "initial"))
                whole = make()
                seed_generators(seed)
                _Comparison(network, blocks, whole).run(facts, samples)


class _Comparison:
    """A module and its parts, which have the same tensors, read the same micro-batches and draw the same numbers."""

    def __init__(self, network: MeasuredNetwork, blocks: dict[str, Block], whole: nn.Module) -> None:
        self.graph, self.blocks, self.whole = network.graph, blocks, whole
        self.precision = evolve(network.spec.precision, compute="float32")
        self.spec = network.spec
        head: Any = blocks[network.graph.head]
        self.parts: Mapping[str, nn.Module] = head.parts_of(whole)

    def run(self, facts: DataFacts, samples: Tree) -> None:
        of_run = evolve(NumericsContext.of_run(self.spec, facts), precision=self.precision)
        contiguous = evolve(of_run, precision=evolve(self.precision, memory_format="contiguous"))
        half = len(inputs_of(samples)[0]) // 2
        batches = [mapped(itemgetter(slice(start, start + half)), samples) for start in (0, half)]
        read, as_run = ([tuple(map(by.prepare, inputs_of(one))) for one in batches] for by in (contiguous, of_run))

        self.whole.train()
        self.blocks = {name: place(block, contiguous) for name, block in self.blocks.items()}
        self._draw_anew()
        for found, own in zip(*self._compare("in training", read, read), strict=True):
            weights = [torch.randn_like(one) for one in _floats(found)]
            for tree in (found, own):
                used = [at for at, one in enumerate(_floats(tree)) if one.requires_grad]
                torch.autograd.backward([_floats(tree)[at] for at in used], [weights[at] for at in used])
        for what in ("gradient", "buffer"):
            of_whole = dict(_tensors(self.whole, what))
            for name in self.graph.order:
                for key, one in _tensors(self.blocks[name], what):
                    if key in of_whole and not _close(of_whole[key], one, _GRADIENTS):
                        raise self._refused(
                            f"in its part {name!r}, the {what} of {key} is another than in the module itself"
                        )

        self.whole.eval()
        self.blocks = {name: place(block, of_run).eval() for name, block in self.blocks.items()}
        with torch.no_grad():
            self._compare("in evaluation", read[:1], as_run[:1], tolerance=_FORMATS)

    @torch.no_grad()
    def _draw_anew(self) -> None:
        """Move all parameters away from their initial values, and give blocks and module the same tensors."""
        for parameter in self.whole.parameters():
            if parameter.is_floating_point():
                parameter.add_(torch.randn_like(parameter), alpha=0.02)
        of_whole = dict(_tensors(self.whole))
        for block in self.blocks.values():
            for name, one in _tensors(block):
                if name in of_whole and one.shape == of_whole[name].shape:
                    one.copy_(of_whole[name])

    def _compare(
        self, when: str, read: Sequence[Streams], as_run: Sequence[Streams], tolerance: float = 0.0
    ) -> tuple[list[Tree], list[Tree]]:
        """Run parts and module on micro-batches, and compare what every part makes of them; return what both return."""
        values, states = self._in_turns(as_run)
        made: dict[str, list[Any]] = {name: [] for name in self.graph.order}
        hooks = [
            part.register_forward_hook(lambda *called, name=name: made[name].append(called[-1]))
            for name, part in self.parts.items()
            if name in made and part is not self.whole
        ]
        found = []
        for number, streams in enumerate(read):
            seed_generators(number)
            outside = states_without_key()
            found.append(self.whole(*streams))
            if (drawn := drawn_without_key(outside)) or not torch.equal(states[number], torch.get_rng_state()):
                by = drawn[0] if drawn else "torch's generator"
                hint = "its forward draws what no part draws: put it into a module that is a part"
                raise self._refused(f"its forward draws from {by}, and its parts draw otherwise", hint)
        for hook in hooks:
            hook.remove()
        for name in self.graph.order:
            # A coupled part gives the state before it as well: its own value counts.
            pairs = [(leaves(one), own[: len(leaves(one))]) for one, own in zip(made[name], values[name], strict=False)]
            if len(made[name]) == len(read) and not all(_alike(one, own, tolerance) for one, own in pairs):
                raise self._refused(f"{when}, its part {name!r} computes something else than in the module's forward")
        head: Any = self.blocks[self.graph.head]
        returned = [head.returned(one) for one in values[self.graph.head]]
        for one, own in zip(found, returned, strict=True):
            if not _alike(leaves(one), leaves(own), tolerance):
                raise self._refused(
                    f"{when}, its parts return {shapes(own)} with other values than its forward: {shapes(one)}"
                )
        return found, returned

    def _in_turns(self, read: Sequence[Streams]) -> tuple[Mapping[str, list[Streams]], list[Tensor]]:
        """Return what each part makes of micro-batches, all of them before the next part, and torch's generator behind each."""
        known, states = [{INPUT: one} for one in read], []
        for number in range(len(read)):
            seed_generators(number)
            states.append(torch.get_rng_state())
        outside = states_without_key()
        for name in self.graph.order:
            block: Any = self.blocks[name]
            for number, streams in enumerate(known):
                given = tuple(one for producer in self.graph.nodes[name].inputs for one in streams[producer])
                torch.set_rng_state(states[number])
                coupled = isinstance(block, Reversible)
                streams[name] = (block.residual(given[0]), given[0]) if coupled else block(*given)
                states[number] = torch.get_rng_state()
            if drawn := drawn_without_key(outside):
                hint = "a part runs twice, and would draw others: draw with torch"
                raise self._refused(f"its part {name!r} draws from {drawn[0]}", hint)
        return {name: [streams[name] for streams in known] for name in self.graph.order}, states

    def _refused(self, message: str, hint: str = "") -> SpecError:
        usual = (
            "let nodes() return what its forward does, part by part: operations between two modules belong in a module; "
            "without nodes(), the network is one node"
        )
        build = getattr(next(iter(self.graph.nodes.values())).options, "build", "the network")
        return SpecError(Problem(message=f"{build}: {message}", hint=hint or usual, path=("architecture",)))


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


def _alike(found: Sequence[Tensor], own: Sequence[Tensor], tolerance: float) -> bool:
    return len(found) == len(own) and all(
        one.shape == other.shape and one.dtype == other.dtype and _close(one, other, tolerance)
        for one, other in zip(found, own, strict=True)
    )


def _close(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether tensors differ by at most a share of their norm."""
    one, other = one.detach().double(), other.detach().double()
    if tolerance and bool(one.isfinite().all()):
        return bool((one - other).norm() <= tolerance * one.norm())
    return bool(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))
