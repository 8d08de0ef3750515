"""The trained parameters of a block, and leaves that stand for them while its backward runs.

Autograd accumulates into `grad` of the leaves that it reaches. In the backward of a node these must not be the
parameters themselves: their gradients are outputs of the node, which autograd accumulates where and when it should.

`torch.func.functional_call` does the same for one call of `forward`; here any method of a block may be called, and the walk
over its modules is done once a forward, since it takes longer than small functions do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from attrs import frozen
from torch import nn


@frozen(eq=False)
class TrainedParameters:
    """Where a block's modules hold the parameters that require a gradient."""

    values: tuple[nn.Parameter, ...]
    """Each once, also where modules share it."""
    slots: tuple[tuple[nn.Module, str, int], ...]
    """Module, name, and place in `values`."""
    versions: tuple[int, ...]
    """How often each value has been changed in place, as autograd counts."""
    tracks_statistics: bool
    """Whether a module has running statistics."""

    @staticmethod
    def of(block: nn.Module) -> TrainedParameters:
        """Walk over a block's modules."""
        places: dict[nn.Parameter, int] = {}
        slots: list[tuple[nn.Module, str, int]] = []
        seen: set[nn.Module] = set()
        waiting, tracks = [block], False
        while waiting:
            module = waiting.pop()
            if module in seen:
                continue
            seen.add(module)
            tracks = tracks or bool(getattr(module, "track_running_stats", False))
            for name, value in module._parameters.items():  # noqa: SLF001  `named_parameters` is ten times slower
                if value is not None and value.requires_grad:
                    slots.append((module, name, places.setdefault(value, len(places))))
            waiting.extend(child for child in module._modules.values() if child is not None)  # noqa: SLF001
        return TrainedParameters(tuple(places), tuple(slots), tuple(one._version for one in places), tracks)  # noqa: SLF001

    @property
    def changed(self) -> bool:
        """Whether a value has been changed in place since the walk, as an optimizer does."""
        return any(one._version != before for one, before in zip(self.values, self.versions, strict=True))  # noqa: SLF001

    @contextmanager
    def replaced(self) -> Iterator[list[nn.Parameter]]:
        """Let leaves with the same values stand in the modules; yield them."""
        leaves = [nn.Parameter(value.detach()) for value in self.values]
        held = [module._parameters[name] for module, name, _ in self.slots]  # noqa: SLF001
        for module, name, place in self.slots:
            module._parameters[name] = leaves[place]  # noqa: SLF001
        try:
            yield leaves
        finally:
            for (module, name, _), parameter in zip(self.slots, held, strict=True):
                module._parameters[name] = parameter  # noqa: SLF001
