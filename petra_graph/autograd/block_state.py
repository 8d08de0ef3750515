"""The state of a block in its forward, in which its backward evaluates it again.

The tensors that its modules hold are theirs as a rule, and are read as they are. Where a forward read others, the backward puts
them back for as long as it takes: `torch.func.functional_call` gives a module weights for one call alone, and code may set
a buffer again. A buffer that the forward itself writes (a step counter, the vectors of a spectral norm) is copied before it;
the backward reads a copy of that, and what it writes there is dropped, so that every forward counts once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from attrs import define
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from petra_graph.autograd.parameter_gradients import ParameterGradients, call_hooks_once
from petra_graph.blocks.differentiation import differentiated_by


@define(eq=False)
class BlockState:
    """Where a block's modules hold their tensors in a forward."""

    values: tuple[nn.Parameter, ...]
    """The parameters that require a gradient, each once, also where modules share it."""
    slots: tuple[tuple[dict[str, Any], str, int], ...]
    """The table of a module, name, and place in `values`."""
    fixed: tuple[tuple[dict[str, Any], str, Tensor], ...]
    """Frozen parameters and buffers: the table of a module, name, and value."""
    versions: tuple[tuple[Tensor, int], ...]
    """How often each parameter has been changed in place, as autograd counts."""
    buffers: tuple[tuple[Tensor, str, int], ...]
    """Buffers that functions may read, their names in their modules, and how often each has been changed in place."""
    copies: Mapping[int, Tensor]
    """Values before the forward, by the buffer's identity; none where this block has been seen to write to no buffer."""
    modules: tuple[tuple[nn.Module, bool, tuple[nn.Module | None, ...]], ...]
    """All modules, beginning with the block: whether they train, and the modules in them."""
    tracks_statistics: bool
    """Whether a module has running statistics."""

    @staticmethod
    def of(block: nn.Module) -> BlockState:
        """Walk over a block's modules.

        Raises:
            RuntimeError: parameters have no shape yet, or were cached without a graph.
        """
        places: dict[nn.Parameter, int] = {}
        slots: list[tuple[dict[str, Any], str, int]] = []
        fixed: list[tuple[dict[str, Any], str, Tensor]] = []
        frozen_parameters: list[Tensor] = []
        read: list[tuple[Tensor, str]] = []
        modules: dict[nn.Module, tuple[nn.Module | None, ...]] = {}
        waiting, tracks, cached = [block], False, bool(parametrize._cache_enabled)  # noqa: SLF001  nothing public says it
        while waiting:
            module = waiting.pop()
            if module in modules:
                continue
            modules[module] = children = tuple(module._modules.values())  # noqa: SLF001
            statistics = getattr(module, "track_running_stats", None)
            tracks = tracks or bool(statistics)
            parameters, buffers = module._parameters, module._buffers  # noqa: SLF001  `named_parameters` is ten times slower
            for name, value in parameters.items():
                if value is None:
                    continue
                if isinstance(value, UninitializedParameter):
                    raise RuntimeError(  # noqa: TRY004  no argument is of a wrong type
                        f"petra_graph.reversible: parameter {name} of a function has no shape yet: {_LAZY}"
                    )
                if value.requires_grad:
                    slots.append((parameters, name, places.setdefault(value, len(places))))
                else:
                    fixed.append((parameters, name, value))
                    frozen_parameters.append(value)
            if buffers:
                fixed.extend((buffers, name, value) for name, value in buffers.items() if value is not None)
                # In training, torch's own normalisations use the batch's statistics, and `frozen_statistics` stops the running ones.
                if statistics is None or not module.training or not type(module).__module__.startswith("torch."):
                    read.extend((value, name) for name, value in buffers.items() if value is not None)
            waiting.extend(child for child in children if child is not None)
            if cached and parametrize.is_parametrized(module):
                raise RuntimeError(f"petra_graph.reversible: {_CACHED}")
        watched = tuple((value, name, value._version) for value, name in read if not value.is_inference())  # noqa: SLF001
        still = block in _writes_nothing[block.training]
        return BlockState(
            values=tuple(places),
            slots=tuple(slots),
            fixed=tuple(fixed),
            versions=(*((value, value._version) for value in places), *versions_of(frozen_parameters)),  # noqa: SLF001
            buffers=watched,
            copies={} if still else {id(value): value.detach().clone() for value, _, _ in watched},
            modules=tuple((module, module.training, children) for module, children in modules.items()),
            tracks_statistics=tracks,
        )

    def note_written(self) -> None:
        """At the end of the forward, keep the former values of the buffers that it has written, and watch the others."""
        if not self.buffers:
            return
        block = self.modules[0][0]
        written = {id(value) for value, _, before in self.buffers if value._version != before}  # noqa: SLF001
        (_writes_nothing[block.training].discard if written else _writes_nothing[block.training].add)(block)
        # Another forward may write them before the backward. Without a copy, they stay among `buffers`, and are refused.
        self.copies = {one: copy for one, copy in self.copies.items() if one in written}
        self.buffers = tuple(one for one in self.buffers if id(one[0]) not in self.copies)

    @property
    def change(self) -> str:
        """What has changed since the forward, so that functions return other values; "" where nothing has."""
        for value, before in self.versions:
            if value._version != before:  # noqa: SLF001
                return "its parameters were modified by an inplace operation, such as an optimizer's step"
        for value, name, before in self.buffers:
            if value._version != before:  # noqa: SLF001
                names = (full for full, one in self.modules[0][0].named_buffers(remove_duplicate=False) if one is value)
                return f"its buffer {next(names, name)} was modified by an inplace operation"
        for module, training, children in self.modules:
            if module.training is not training:
                return "it changed between training and evaluation mode, or one of its modules did"
            if tuple(module._modules.values()) != children:  # noqa: SLF001
                return "one of its modules was added, removed or replaced"
        return ""

    @contextmanager
    def evaluated_again(self, *, adds_to_grad: bool) -> Iterator[list[Tensor | None]]:
        """Give the modules what they held in the forward; the list has the gradients of `values` afterwards.

        Args:
            adds_to_grad: the block differentiates by itself, and so adds to `grad` of what it finds in its modules.
        """
        gradients: list[Tensor | None] = [None] * len(self.values)
        again = {one: copy.clone() for one, copy in self.copies.items()}
        read = (
            [(table, name, again.get(id(value), value)) for table, name, value in self.fixed] if again else self.fixed
        )
        changed = [(table, name, value) for table, name, value in read if table.get(name) is not value]
        given = any(table.get(name) is not self.values[place] for table, name, place in self.slots)
        if given or adds_to_grad or any(not value.is_leaf for value in self.values):
            leaves = [nn.Parameter(value.detach()) for value in self.values]
            stand_ins = ((table, name, leaves[place]) for table, name, place in self.slots)
            with _held([*stand_ins, *changed]), differentiated_by(None):
                yield gradients
            gradients[:] = [leaf.grad for leaf in leaves]
            return
        call_hooks_once(self.values)
        known = frozenset(map(id, (*self.values, *(value for _, _, value in self.fixed))))
        with _held(changed), differentiated_by(ParameterGradients(self.values, known, gradients)):
            yield gradients


_writes_nothing: Mapping[bool, WeakSet[nn.Module]] = {mode: WeakSet() for mode in (False, True)}
"""By mode, blocks whose last forward has written to no buffer: a mask or a table need not be copied each time."""


@contextmanager
def _held(wanted: Sequence[tuple[dict[str, Any], str, Tensor]]) -> Iterator[None]:
    """Put these tensors into the tables of modules."""
    held = [table.get(name) for table, name, _ in wanted]
    try:
        for table, name, value in wanted:
            table[name] = value
        yield
    finally:
        for (table, name, _), before in zip(wanted, held, strict=True):
            table[name] = before


_LAZY = "call the function once before, so that LazyLinear and its like know their inputs"
_CACHED = (
    "torch.nn.utils.parametrize.cached() keeps parametrized weights without a graph, so that they would get no gradient: "
    "leave it out around the sequence, or set keep_graphs=len(sequence)"
)


def versions_of(tensors: Iterable[Tensor]) -> tuple[tuple[Tensor, int], ...]:
    """Return tensors with how often each has been changed in place; those of inference mode are not counted."""
    return tuple((one, one._version) for one in tensors if not one.is_inference())  # noqa: SLF001
