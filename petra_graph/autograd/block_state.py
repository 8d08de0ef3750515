"""The state of a block in its forward, and leaves that stand for its parameters while its backward runs.

Autograd accumulates into `grad` of the leaves that it reaches. In the backward of a node these must not be the
parameters themselves: their gradients are outputs of the node, which autograd accumulates where and when it should.

`torch.func.functional_call` does the same for one call of `forward`; here any method of a block may be called, and the walk
over its modules is done once a forward, since it takes longer than small functions do. What that gives for a forward is gone
in the backward: so a block's frozen parameters and buffers are remembered, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from attrs import frozen
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize


@frozen(eq=False)
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
    modes: tuple[tuple[nn.Module, bool], ...]
    """Of all modules, whether they train."""
    tracks_statistics: bool
    """Whether a module has running statistics."""

    @staticmethod
    def of(block: nn.Module) -> BlockState:
        """Walk over a block's modules.

        Raises:
            RuntimeError: parameters have no shape yet, or come from a cache without a graph.
        """
        places: dict[nn.Parameter, int] = {}
        slots: list[tuple[dict[str, Any], str, int]] = []
        fixed: list[tuple[dict[str, Any], str, Tensor]] = []
        frozen_parameters: list[Tensor] = []
        modes: dict[nn.Module, bool] = {}
        waiting, tracks, cached = [block], False, bool(parametrize._cache_enabled)  # noqa: SLF001  nothing public says it
        while waiting:
            module = waiting.pop()
            if module in modes:
                continue
            modes[module] = module.training
            tracks = tracks or bool(getattr(module, "track_running_stats", False))
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
            waiting.extend(child for child in module._modules.values() if child is not None)  # noqa: SLF001
            if cached and parametrize.is_parametrized(module):
                raise RuntimeError(f"petra_graph.reversible: {_CACHED}")
        return BlockState(
            values=tuple(places),
            slots=tuple(slots),
            fixed=tuple(fixed),
            versions=(*((value, value._version) for value in places), *versions_of(frozen_parameters)),  # noqa: SLF001
            modes=tuple(modes.items()),
            tracks_statistics=tracks,
        )

    @property
    def change(self) -> str:
        """What has changed since the walk, so that functions return other values; "" where nothing has.

        Buffers are left out: running statistics change in every forward, and training does not read them.
        """
        for value, before in self.versions:
            if value._version != before:  # noqa: SLF001
                return "its parameters were modified by an inplace operation, such as an optimizer's step"
        for module, training in self.modes:
            if module.training is not training:
                return "it changed between training and evaluation mode, or one of its modules did"
        return ""

    @contextmanager
    def replaced(self) -> Iterator[list[nn.Parameter]]:
        """Let leaves with the same values stand in the modules, and what else they held in the forward; yield the leaves."""
        leaves = [nn.Parameter(value.detach()) for value in self.values]
        other = [(table, name, value) for table, name, value in self.fixed if table.get(name) is not value]
        wanted = [*((table, name, leaves[place]) for table, name, place in self.slots), *other]
        held = [table.get(name) for table, name, _ in wanted]
        try:
            for table, name, value in wanted:
                table[name] = value
            yield leaves
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
