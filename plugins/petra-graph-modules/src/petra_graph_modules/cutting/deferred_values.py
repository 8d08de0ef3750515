"""Building a network without drawing its initial values, so that each of its parts can draw its own later.

A constructor draws the initial values of a whole network. A node has one part of it, drawn with a seed of its
own; building all of torchvision's ViT-H for each of its 34 nodes would draw 600 million values 34 times.

`DeferredValues` holds back the operations that draw a tensor's values. They are carried out for the tensors that are
wanted, and at once if anything else reads such a tensor: a constructor sees the same values as ever.

Decision: `torch.nn.init.trunc_normal_` is replaced while a network is built. It reads what it has drawn, to draw again what is
out of bounds, so its operations cannot be held back one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self
from unittest.mock import patch

import torch
from attrs import frozen
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_OVERWRITE = {"aten::normal_", "aten::uniform_", "aten::zero_", "aten::fill_"}
"""In-place operations after which no earlier value is left."""


@frozen
class Step:
    """An operation in place on a tensor of some shape."""

    function: Callable[..., Any]
    shape: tuple[int, ...]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


Steps = tuple[Step, ...]


def carry_out(steps: Steps, tensor: Tensor) -> None:
    """Let a dense tensor have the values that these operations give it, with torch's random numbers of now."""
    with torch.no_grad():
        for step in steps:
            step.function(tensor.view(step.shape), *step.arguments, **step.keywords)


class DeferredValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Holds back random values that are written to whole tensors, and what is done in place to such tensors afterwards."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._drawn_apart = False
        self._drawn: set[int] = set()
        self._held: dict[int, tuple[Tensor, list[Step]]] = {}
        self._truncated = nn.init.trunc_normal_
        self._replaced = patch.object(nn.init, "trunc_normal_", self._trunc_normal)

    def __enter__(self) -> Self:
        """Hold back from now on."""
        self._replaced.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        """Hold nothing back any more; what is held stays so."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._replaced.stop()

    def take(self, tensor: Tensor) -> Steps:
        """Return the operations held back of a tensor, () where it has its values; they will not be carried out here."""
        _, steps = self._held.pop(_memory(tensor), (None, []))
        return tuple(steps)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Hold an operation back, or carry it out after what it reads."""
        kwargs = kwargs or {}
        if _in_place(func, args) and (_memory(args[0]) in self._held or _random(func)):
            self._hold(func, args[0], args[1:], kwargs, anew=_name(func) in _OVERWRITE)
            return args[0]
        if not func.is_view and _name(func) != "aten::detach":
            for tensor in [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]:
                self._release(tensor)
        self._drawn_apart |= _random(func)
        if _in_place(func, args) and _name(func) in _OVERWRITE:
            self._drawn.discard(_memory(args[0]))
        return func(*args, **kwargs)

    @property
    def drawn_at_once(self) -> bool:
        """Whether values were drawn that could not be held back, and nothing has replaced them."""
        return self._drawn_apart or bool(self._drawn)

    def _hold(
        self,
        function: Callable[..., Any],
        tensor: Tensor,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        *,
        anew: bool,
    ) -> None:
        held = self._held.setdefault(_memory(tensor), (tensor.detach(), []))[1]
        if anew:
            held.clear()
            self._drawn.discard(_memory(tensor))
        held.append(Step(function, tuple(tensor.shape), tuple(arguments), dict(keywords)))

    def _trunc_normal(self, tensor: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        if not _whole(tensor):
            return self._truncated(tensor, *arguments, **keywords)
        self._hold(self._truncated, tensor, arguments, keywords, anew=True)
        return tensor

    def _release(self, tensor: Tensor) -> None:
        if _memory(tensor) in self._held:
            whole, steps = self._held.pop(_memory(tensor))
            carry_out(tuple(steps), whole)
            if any(step.function is self._truncated or _random(step.function) for step in steps):
                self._drawn.add(_memory(whole))


def _in_place(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operation writes to the whole of one tensor, its first argument, and reads no other."""
    if not _name(func).endswith("_") or not args or not isinstance(args[0], Tensor):
        return False
    return _whole(args[0]) and not any(isinstance(value, Tensor) for value in args[1:])


def _whole(tensor: Tensor) -> bool:
    return (
        tensor.numel() > 0
        and tensor.is_contiguous()
        and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    )


def _name(func: Any) -> str:
    """Return an operation's name without its overload, as in "aten::normal_"."""
    return str(func.name()).partition(".")[0]


def _random(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
