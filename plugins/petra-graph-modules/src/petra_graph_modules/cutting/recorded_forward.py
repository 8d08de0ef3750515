"""A module's forward as a graph of operations, recorded while it runs on samples without values.

The forward runs as it is, on torch's meta device, and every torch function that it calls is written down; modules that are *units* are
one operation each. Python runs for real, so branches on options and sizes, loops over lists of modules and dictionaries of outputs need
no rewriting. What depends on a tensor's values cannot be recorded, and is refused with the line.

Decision: neither `torch.fx.symbolic_trace` nor `torch.export`. The first gives the forward proxies, which are no tensors: `isinstance`,
`torch.arange(x.shape[1], device=x.device)` and branches on sizes fail. The second runs it for real, but returns operations of
aten: batch normalisations, embeddings and dropout are no modules any more, on which weight decay, running statistics and the difference between
training and evaluation depend. The result is a graph of torch.fx.

A forward is recorded with two sizes of batch, and once more with another length if the one input is tokens; numbers that follow from
these are computed again when the graph runs. It is recorded in training and in evaluation, which may give other arguments to the same operations.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import Factory, evolve, field, frozen
from torch import Tensor, fx, nn

from petra_graph.blocks.moving_state import moved, state_of
from petra_graph.kinds.author_code import author_line
from petra_graph.plugins import seeded
from petra_graph.units import listed
from petra_graph_modules.cutting.borrowed_network import borrowed
from petra_graph_modules.cutting.cannot_cut import CannotCut
from petra_graph_modules.cutting.joined_recordings import BATCHES, join_recordings
from petra_graph_modules.cutting.operations import numbered
from petra_graph_modules.cutting.recorder import OF_JIT, Recorder
from petra_graph_modules.cutting.two_modes import returned, twins_of

_COUNT = (
    "count in a buffer of a module of its own, in place, and only while its attribute `track_running_stats` is true"
)


@frozen
class Input:
    """A tensor that a network reads of each sample."""

    shape: tuple[int, ...]
    """Without the batch."""
    dtype: torch.dtype
    name: str = ""
    """By which the forward may ask for it; "" of a single one."""


@frozen(eq=False)
class RecordedForward:
    """The operations of a forward. Arguments may be `Size` and `Device`."""

    training: fx.Graph
    evaluation: fx.Graph
    """The same operations, whose other arguments may differ; it may be without some that training returns, such as an auxiliary head."""
    twins: Mapping[fx.Node, fx.Node] = field(
        default=Factory(
            lambda made: dict(zip(made.training.nodes, made.evaluation.nodes, strict=True)), takes_self=True
        )
    )
    """By operation in training, the same one in evaluation."""
    returns: Mapping[bool, Any] = field(factory=lambda: {True: 0, False: 0})
    """What it returns in training, and in evaluation, with numbers in the places of tensors: which of the values that training returns."""


def recorded(
    network: nn.Module, units: Mapping[nn.Module, str], inputs: Sequence[Input], names: Sequence[str] = ()
) -> RecordedForward:
    """Record the forward of a network.

    Args:
        network: its parameters may be on the meta device; they are not changed.
        units: the modules that are one operation each, and their names.
        inputs: what it reads of a sample.
        names: of the inputs, if the forward is given them by name.

    Raises:
        CannotCut: the forward depends on values, or fails.
    """
    first = inputs[0]
    of_tokens = len(inputs) == 1 and first.dtype == torch.int64 and first.shape[:1] > (1,)
    lengths = [first.shape[0], first.shape[0] - 1] if of_tokens else []

    def graphs(*, train: bool) -> dict[tuple[int, int], fx.Graph]:
        sizes = [(n, t) for t in (lengths or [0]) for n in BATCHES]
        found: dict[tuple[int, int], fx.Graph] = {}
        for key, (n, t) in enumerate(sizes):
            read = [evolve(first, shape=(t, *first.shape[1:]))] if lengths else inputs
            forward = _Forward(network=network, units=units, inputs=read, samples=n, names=names, train=train, key=key)
            try:
                found[n, t] = forward.record()
            except CannotCut:
                if not lengths or t == lengths[0]:
                    raise
        return found

    training, evaluation = graphs(train=True), graphs(train=False)
    one, other = join_recordings(training), join_recordings(evaluation)
    twins = twins_of(one, other)
    return RecordedForward(one, other, twins, returned(one, other, twins))


@frozen(kw_only=True)
class _Forward:
    """A forward to be recorded."""

    network: nn.Module
    units: Mapping[nn.Module, str]
    inputs: Sequence[Input]
    samples: int
    """How many a batch has."""
    names: Sequence[str]
    """By which the forward is given its inputs; (): in their order."""
    train: bool
    key: int
    """What the global generators are seeded with; 0: the forward is called again, which must do the same."""

    def record(self) -> fx.Graph:
        try:
            return self._recorded("meta")
        except CannotCut as error:
            if not _needs_values(error.__cause__):
                raise
        return self._recorded("cpu")

    def _recorded(self, device: str) -> fx.Graph:
        with seeded(self.key), borrowed(self.network, device) as names:
            self.network.train(self.train)
            first = self._called(Recorder(self.network, self.units, names, device))
            if not self.key:
                self._expect_buffers(names)
                before = state_of(self.network)
                again = self._called(Recorder(self.network, self.units, names, device, earlier=first.nodes))
                _expect_same(first, again)
                inside = tuple(f"{name}." for name in self.units.values())  # which the self-check asks
                if names_moved := [one for one in moved(before, state_of(self.network)) if not one.startswith(inside)]:
                    hint = f"draw with torch; {_COUNT}"
                    raise CannotCut(
                        f"its forward changes {listed(names_moved)} at each call, which its parts would not do", hint
                    )
        return first.graph

    def _expect_buffers(self, names: Mapping[int, str]) -> None:
        own = self.network.named_buffers(remove_duplicate=False)
        if replaced := [name for name, one in own if id(one) not in names]:
            raise CannotCut(f"its forward replaces the buffer {listed(replaced)}, which its parts would not do", _COUNT)

    def _called(self, recorder: Recorder) -> Recorder:
        read = [torch.zeros(self.samples, *one.shape, dtype=one.dtype, device=recorder.device) for one in self.inputs]
        named = dict(zip(self.names, read, strict=True)) if self.names else {}
        try:
            with recorder.on(read):
                recorder.end(self.network(**named) if named else self.network(*read))
        except CannotCut as error:
            at = author_line(error)
            raise CannotCut(f"{at}: {error}" if at else str(error), error.hint) from error.__cause__
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            reason += _layer_at_fault(self.network, error)
            at = author_line(error)
            on = ", ".join(
                f"{one.name} {list(tensor.shape)} of {one.dtype}".lstrip()
                for one, tensor in zip(self.inputs, read, strict=True)
            )
            hint = f"it runs on {on}, of which {self.samples} are the batch"
            hint = OF_JIT if "TorchScript" in str(error) else hint
            raise CannotCut(f"{f'{at}: ' if at else ''}its forward fails: {reason}", hint) from error
        return recorder


def names_in_forward(network: nn.Module, inputs: Sequence[Input]) -> tuple[str, ...]:
    """Return the names by which a forward is given its inputs; (): it has no parameter of these names, and reads them in their order.

    Raises:
        CannotCut: it has some of the names, and cannot be called with all of them.
    """
    names = tuple(one.name for one in inputs)
    if len(names) == 1:
        return ()
    signature = inspect.signature(network.forward)
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        if signature.parameters.keys().isdisjoint(names):
            return ()
        hint = "give its parameters the names of the inputs, or none of them: it then reads the inputs in their order"
        message = f"its forward{signature} cannot be called with the inputs {', '.join(names)}: {error}"
        raise CannotCut(message, hint) from None
    return names


def _layer_at_fault(network: nn.Module, error: Exception) -> str:
    """Return the innermost layer with weights that raised an error, with its sizes: torch's words on meta tensors have none."""
    names, found = {id(module): name for name, module in network.named_modules()}, ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        layer, given = (frame.f_locals.get(name) for name in ("self", "input"))
        weight = getattr(layer, "weight", None)
        if id(layer) in names and isinstance(weight, Tensor) and isinstance(given, Tensor):
            found = f" in {names[id(layer)] or 'the network'}, {layer}, whose weight is {list(weight.shape)}, on an input of {list(given.shape)}"
    return found


def _needs_values(error: BaseException | None) -> bool:
    return isinstance(error, NotImplementedError) or "meta" in str(error).lower()


def _expect_same(first: Recorder, again: Recorder) -> None:
    """Expect that a second call returns what the first does; what follows from sizes alone may be kept from one to the other."""
    numbers: dict[object, int] = {}
    of_first = numbered(first.graph, numbers, {})
    of_again = numbered(again.graph, numbers, {node: of_first[made] for node, made in again.kept.items()})
    *_, output = first.graph.nodes
    *_, output_again = again.graph.nodes
    if of_first[output] == of_again[output_again]:
        return
    known = set(of_first.values())
    line = next((node.meta["line"] for node, one in of_again.items() if one not in known and "line" in node.meta), "")
    hint = "let it follow from the samples, its options and torch's random numbers alone; what counts or decides belongs into a module of its own"
    raise CannotCut(f"{line}: its forward does something else when it is called again", hint)
