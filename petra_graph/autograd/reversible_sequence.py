"""`reversible`: a sequence of residual functions whose training keeps no activation, whatever its depth.

    forward     (x, t) -> (t + F(x), x)         block after block; the last one keeps its outputs
    backward    (y, s) -> (s, y - F(s))         reconstructs the inputs of each block, from the last one down,
                (dy, ds) -> (ds + J^T dy, dy)   with J = dF/dx at s, from the same evaluation of F

for "additive" (Gomez et al. 2017, https://arxiv.org/abs/1707.04585); `petra_graph.blocks.couplings` has the others. Dropout and autocast of
the backward are the forward's; functions that write buffers are refused, running statistics follow the forward alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from petra_graph.autograd.block_in_graph import (
    SequenceCall,
    autocast_in_force,
    current,
    draw_key,
    evaluated,
    undoable,
    versions_of,
)
from petra_graph.blocks import (
    AdditiveCoupling,
    AffineCoupling,
    MomentumCoupling,
    Reversible,
    Streams,
    TwoFunctionCoupling,
)
from petra_graph.blocks.randomness import under_key, within

CouplingName = Literal["additive", "affine", "momentum"]
_HALF_PRECISION = (torch.bfloat16, torch.float16)


class _OneFunction(Reversible):
    """A coupling of `function`, with the coefficients that its class has."""

    def __init__(self, function: nn.Module, coefficients: Mapping[str, float]) -> None:
        super().__init__(())
        self.function = function
        for name, value in coefficients.items():
            setattr(self, name, value)

    def residual(self, x: Tensor, *differentiated: Tensor) -> Tensor:
        return evaluated(self.function, x, *differentiated)


class Additive(_OneFunction, AdditiveCoupling): ...


class Momentum(_OneFunction, MomentumCoupling): ...


class Affine(_OneFunction, AffineCoupling):
    """(x, t) -> (t * exp(s) + u, x) for (s, u) = F(x), two tensors or one with twice the features."""

    def scale_and_shift(self, x: Tensor, *differentiated: Tensor) -> tuple[Tensor, Tensor]:
        """Return s before it is bounded, and u."""
        value: Any = evaluated(self.function, x, *differentiated)
        if isinstance(value, Tensor) and value.dim() == x.dim():
            # Halved along the dimension that differs; a mistake is told by the coupling, with both shapes.
            changed = [at for at, size in enumerate(value.shape) if size != x.shape[at]]
            value = value.chunk(2, changed[0] if changed else 1)
        if not isinstance(value, tuple | list) or len(value) != 2:  # noqa: PLR2004  s and u
            returned = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(
                "a function of an affine coupling returns two tensors (s, u) of its input's shape, or one with twice the "
                f"features (got {returned} for an input {list(x.shape)})"
            )
        return value[0], value[1]


class TwoFunctions(TwoFunctionCoupling):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__(())
        self.first, self.second = first, second

    def f(self, x: Tensor, *differentiated: Tensor) -> Tensor:
        return evaluated(self.first, x, *differentiated)

    def g(self, x: Tensor, *differentiated: Tensor) -> Tensor:
        return evaluated(self.second, x, *differentiated)


_COUPLINGS: Mapping[str, tuple[type[_OneFunction], str]] = {
    "additive": (Additive, ""),
    "affine": (Affine, "log_scale_bound"),
    "momentum": (Momentum, "momentum"),
}
"""How functions are coupled, and the coefficient that a caller may choose."""
_FUNCTIONS = (_OneFunction, TwoFunctions)
"""Blocks of functions, which read what a call gives beside the streams; any other block reads streams alone."""


def _coupled(entry: object, coupling: CouplingName, coefficients: Mapping[str, float]) -> Reversible:
    """Return the block of one entry of a sequence: a function, a pair of them, or a reversible block as it is."""
    if isinstance(entry, Reversible):
        return entry
    plain_list = isinstance(entry, nn.ModuleList) and type(entry).forward is nn.ModuleList.forward
    if isinstance(entry, nn.Module) and not plain_list:  # a sequence made by `reversible` is a function as well
        return _COUPLINGS[coupling][0](entry, coefficients)
    parts = list(entry) if isinstance(entry, Sequence | nn.ModuleList) else []
    if len(parts) != 2 or not all(isinstance(part, nn.Module) for part in parts):  # noqa: PLR2004  F and G
        raise TypeError(
            "each entry must be a module F, a pair of modules (F, G) or a petra_graph.blocks.Reversible "
            f"(got {type(entry).__name__})"
        )
    if coupling != "additive":
        raise ValueError(f'pairs of functions are coupled additively; give single functions to "{coupling}"')
    return TwoFunctions(*parts)


class ReversibleSequence(nn.ModuleList):
    """A module that runs residual functions as a reversible network, and trains in memory that no depth changes.

    Each function F maps a tensor [n, ...] to one of the same shape, without the addition: attention(norm(x)), not
    x + attention(norm(x)). All read the arguments that follow the first: masks, positions, an encoder's output.

    Called with one tensor it returns one of its shape and type:

    | coupling | streams | result |
    |---|---|---|
    | additive, affine | (x, x), or the halves of x with `split` | the mean, or the halves joined |
    | momentum | (x, 0) | the state |

    Called with a tuple of streams it returns a tuple. Streams in half precision become float32 inside, since their
    rounding would be undone wrongly; functions read them in the type that came in, or as autocast has it.

    Args:
        functions: one module a block, or a pair (F, G), as attention and MLP of a transformer block; or blocks of
            `petra_graph.blocks.Reversible`, which are taken as they are.
        coupling: `petra_graph.blocks` has the formula of each.
        split: a single tensor is halved along this dimension, instead of copied; for "additive" and "affine".
        keep_graphs: this many of the last blocks run under plain autograd: with their memory, without their recomputation.
            `len(sequence)` makes the whole sequence plain. It may be changed at any time.
        anchor_every: the number of blocks after which the streams are kept: less rounding, for two tensors a stretch.
        coefficients: of the coupling: `momentum`, `log_scale_bound` (affine).

    Raises:
        TypeError: an entry is not a module, or the coupling does not take a coefficient.
        ValueError: the coupling does not exist or does not fit, or a coefficient allows no inverse.
    """

    def __init__(
        self,
        functions: Iterable[nn.Module | Sequence[nn.Module]],
        *,
        coupling: CouplingName = "additive",
        split: int | None = None,
        keep_graphs: int = 0,
        anchor_every: int | None = None,
        **coefficients: float,
    ) -> None:
        if coupling not in _COUPLINGS:
            raise ValueError(f'coupling must be one of {", ".join(_COUPLINGS)} (got "{coupling}")')
        coefficient = _COUPLINGS[coupling][1]
        if unknown := ", ".join(sorted(coefficients.keys() - {coefficient})):
            raise TypeError(f'coupling "{coupling}" has the coefficients: {coefficient or "none"} (got {unknown})')
        if not all(coefficients.values()) or not 0 <= coefficients.get("momentum", 1.0) <= 1:
            raise ValueError(f"without an inverse: a coefficient is not 0, a momentum at most 1 (got {coefficients})")
        if split is not None and coupling == "momentum":
            raise ValueError('split halves the input for "additive" and "affine"; not the state of "momentum"')
        super().__init__(_coupled(entry, coupling, coefficients) for entry in functions)
        self.coupling: CouplingName = coupling
        self.split, self.keep_graphs, self.anchor_every = split, keep_graphs, anchor_every

    def __getitem__(self, index: Any) -> Any:
        """Return a block, or a sequence of some."""
        if not isinstance(index, slice):
            return super().__getitem__(index)
        names = ("coupling", "split", "keep_graphs", "anchor_every")
        return ReversibleSequence(list(self)[index], **{name: getattr(self, name) for name in names})

    def forward(self, x: Tensor | Sequence[Tensor], *arguments: Any, **named: Any) -> Any:
        """Run all blocks.

        Args:
            x: a tensor [n, ...], or the streams.
            arguments: what each function reads after its stream; tensors among them that require a gradient get it.
            named: the same, by keyword.
        """
        if torch.compiler.is_compiling():
            # Left alone by the compiler around it; functions inside that are compiled themselves stay so.
            return torch.compiler.disable(self._forward)(x, arguments, named)  # type: ignore[no-untyped-call]
        return self._forward(x, arguments, named)

    def _forward(self, x: Tensor | Sequence[Tensor], arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        given = (x,) if isinstance(x, Tensor) else tuple(x)
        if any(stream.is_complex() for stream in given):
            raise TypeError("streams must be real: use torch.view_as_real, and view_as_complex in the functions")
        streams = tuple(stream.float() if stream.dtype in _HALF_PRECISION else stream for stream in given)
        if not isinstance(x, Tensor):
            if len(self) and isinstance(self[0], _FUNCTIONS) and len(given) != 2:  # noqa: PLR2004
                raise ValueError(
                    f'coupling "{self.coupling}" has 2 streams (got a tuple of {len(given)}); '
                    "arguments of functions follow the streams"
                )
            outputs = self._run(streams, given[0].dtype, arguments, named)
            return tuple(one.to(was.dtype) for one, was in zip(outputs, given, strict=False))
        (first,) = streams
        if self.split is None:
            streams = first, torch.zeros_like(first) if self.coupling == "momentum" else first
        elif x.shape[self.split] % 2:
            raise ValueError(f"dimension {self.split} must be even to be split (got {list(x.shape)})")
        else:
            streams = first.chunk(2, self.split)
        one, other = self._run(streams, x.dtype, arguments, named)
        if self.coupling == "momentum":
            return one.to(x.dtype)
        return ((one + other) / 2 if self.split is None else torch.cat((one, other), self.split)).to(x.dtype)

    def _run(self, streams: Streams, dtype: torch.dtype, positional: Sequence[Any], named: dict[str, Any]) -> Streams:
        blocks = cast(list[Reversible], list(self))
        read, structure = tree_flatten((tuple(positional), named))
        places = tuple(at for at, one in enumerate(read) if isinstance(one, Tensor) and one.requires_grad)
        differentiated = tuple(read[at] for at in places)
        autocast = autocast_in_force(streams[0].device)
        # An exported program has no key, which would be a number of the program.
        recorded = torch.compiler.is_exporting() or torch._C._is_tracing()  # noqa: SLF001
        trains = any(one.requires_grad for one in (*streams, *differentiated, *self.parameters()))
        graph = torch.is_grad_enabled() and trains and not recorded
        # A forward without a graph may be evaluated again, too: by `torch.utils.checkpoint`, or by a function of another sequence or a stage.
        within_another = current.get() is not None or under_key()
        again = graph or within_another or any(block.training for block in blocks)
        undone = max(0, len(blocks) - max(0, self.keep_graphs)) if graph else 0
        call = SequenceCall(
            arguments=tuple(None if at in places else one for at, one in enumerate(read)),
            places=places,
            structure=structure,
            device=streams[0].device,
            function_dtype=dtype if dtype in _HALF_PRECISION and autocast is None else None,
            key=draw_key() if again and not recorded else None,
            autocast_dtype=autocast,
            last=undone - 1,
        )
        for index, block in enumerate(blocks):
            own = differentiated if isinstance(block, _FUNCTIONS) else ()
            if index < undone:
                anchor = index == call.last or (self.anchor_every and (index + 1) % self.anchor_every == 0)
                streams = undoable(block, index, call, streams, own, anchor=bool(anchor))
            else:
                with call.block(index) if graph or call.key is not None else within(current, call):
                    streams = block(*streams, *own)[: len(streams)]
        call.versions = versions_of(("an argument", one) for one in call.arguments if isinstance(one, Tensor))
        return streams


reversible = ReversibleSequence
