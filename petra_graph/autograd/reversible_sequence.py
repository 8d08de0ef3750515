"""`reversible`: a sequence of residual functions whose training keeps no activation, whatever its depth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from petra_graph.autograd.block_in_graph import Step
from petra_graph.autograd.sequence_call import Arguments, SequenceCall, autocast_in_force, called_by_another, draw_key
from petra_graph.autograd.wrapped_functions import FUNCTIONS, WRAPPERS, CouplingName, wrap
from petra_graph.blocks import Reversible, Streams
from petra_graph.blocks.couplings.bdia import DEPTH_LIMIT, BdiaCoupling, ExactBdiaCoupling

_NEWEST = ("midpoint", "leapfrog", "momentum", "bdia", "exact-bdia")
"""Couplings of which the first stream is the state; the others are what its past left."""
_HALF_PRECISION = (torch.bfloat16, torch.float16)


def reversible(
    functions: Iterable[nn.Module | Sequence[nn.Module]],
    *,
    coupling: CouplingName = "additive",
    split: int | None = None,
    keep_graphs: int = 0,
    anchor_every: int | None = None,
    preserve_rng_state: bool = True,
    **coefficients: float,
) -> ReversibleSequence:
    """Return a module that runs residual functions as a reversible network, and trains in memory that no depth changes.

    Each function F maps a tensor [n, ...] to one of the same shape, without the addition: attention(norm(x)), not
    x + attention(norm(x)). All read the arguments that follow the first: masks, positions, an encoder's output.

    Args:
        functions: one module a block, or a pair (F, G), as attention and MLP of a transformer block; or blocks of
            `petra_graph.blocks.Reversible`, which are taken as they are.
        coupling: `petra_graph.blocks` has the formula of each.
        split: a single tensor is halved along this dimension, instead of copied; for "additive" and "affine".
        keep_graphs: this many of the last blocks run under plain autograd. Their forward and backward are close in time:
            it costs their memory, and saves their recomputation. `len(sequence)` makes the whole sequence plain.
        anchor_every: the number of blocks after which the streams are kept, so that reconstruction begins again there: less
            rounding, for memory that grows by two tensors a stretch.
        preserve_rng_state: functions draw the same random numbers (dropout) in forward and reconstruction; False
            saves the little time that it takes, where none draws. BDIA draws its signs itself, and always does so.
        coefficients: of the coupling: `step_size` (midpoint, leapfrog), `momentum`, `log_scale_bound` (affine),
            `magnitude` (bdia), `quantum_bits` (exact-bdia).

    Raises:
        TypeError: an entry is not a module, or the coupling does not take a coefficient.
        ValueError: the coupling does not exist or does not fit, or a coefficient allows no inverse.
    """
    if coupling not in WRAPPERS:
        raise ValueError(f'coupling must be one of {", ".join(WRAPPERS)} (got "{coupling}")')
    wrapper = WRAPPERS[coupling]
    if unknown := sorted(coefficients.keys() - {wrapper.coefficient}):
        allowed = wrapper.coefficient or "none"
        raise TypeError(f'coupling "{coupling}" has the coefficients: {allowed} (got {", ".join(unknown)})')
    if split is not None and coupling in _NEWEST:
        raise ValueError(
            f'split halves the input for "additive" and "affine"; "{coupling}" couples a state with its past'
        )
    for name, value in coefficients.items():
        wrapper.check(name, value)
    if isinstance(functions, nn.Module) and not isinstance(functions, Iterable):
        raise TypeError(f"functions must be several modules, one a block (got one, {type(functions).__name__})")
    blocks = [wrap(entry, coupling, coefficients) for entry in functions]
    return ReversibleSequence(
        blocks,
        coupling=coupling,
        split=split,
        keep_graphs=keep_graphs,
        anchor_every=anchor_every,
        preserve_rng_state=preserve_rng_state,
    )


class ReversibleSequence(nn.ModuleList):
    """Reversible blocks in a row; made by `reversible`.

    Called with one tensor it returns one of its shape and type:

    | coupling | streams | result |
    |---|---|---|
    | additive, affine | (x, x), or the halves of x with `split` | the mean, or the halves joined |
    | midpoint, leapfrog, BDIA | (x, x) | the newest state |
    | momentum | (x, 0) | the state |

    Called with a tuple of streams it returns a tuple. Streams in half precision become float32 inside, since their
    rounding would be undone wrongly; functions read them in the type that came in, or as autocast has it.
    """

    keep_graphs: int
    """How many of the last blocks run under plain autograd; may be changed at any time."""

    def __init__(
        self,
        blocks: Iterable[Reversible],
        *,
        coupling: CouplingName,
        split: int | None,
        keep_graphs: int,
        anchor_every: int | None,
        preserve_rng_state: bool,
    ) -> None:
        super().__init__(blocks)
        if keep_graphs < 0 or (anchor_every is not None and anchor_every < 1):
            raise ValueError(
                f"keep_graphs must be at least 0, anchor_every at least 1 (got {keep_graphs}, {anchor_every})"
            )
        self.coupling, self.split = coupling, split
        self.keep_graphs, self.anchor_every = keep_graphs, anchor_every
        self.preserve_rng_state = preserve_rng_state
        quantised = sum(isinstance(block, ExactBdiaCoupling) for block in self)
        if quantised > DEPTH_LIMIT:
            raise ValueError(f"one stream of bits has room for {DEPTH_LIMIT} exact-bdia blocks (got {quantised})")

    def __getitem__(self, index: Any) -> Any:
        """Return a block, or a sequence of some."""
        if not isinstance(index, slice):
            return super().__getitem__(index)
        return ReversibleSequence(
            cast(list[Reversible], list(self))[index],
            coupling=self.coupling,
            split=self.split,
            keep_graphs=self.keep_graphs,
            anchor_every=self.anchor_every,
            preserve_rng_state=self.preserve_rng_state,
        )

    def __repr__(self) -> str:
        return super().__repr__().replace("(\n", f"(  # {self.coupling}, keep_graphs={self.keep_graphs}\n", 1)

    def forward(self, x: Tensor | Sequence[Tensor], *arguments: Any, **named: Any) -> Any:
        """Run all blocks.

        Args:
            x: a tensor [n, ...], or the streams.
            arguments: what each function reads after its stream; tensors among them that require a gradient get it.
            named: the same, by keyword.
        """
        if torch.compiler.is_compiling():
            from petra_graph.autograd.uncompiled_call import call

            return call(self._forward, x, arguments, named)
        return self._forward(x, arguments, named)

    def _forward(self, x: Tensor | Sequence[Tensor], arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        single = isinstance(x, Tensor)
        given = (x,) if isinstance(x, Tensor) else tuple(x)
        self._expect_streams(given, single=single)
        dtype = given[0].dtype
        streams = tuple(stream.float() if stream.dtype in _HALF_PRECISION else stream for stream in given)
        outputs = self._run(self._streams(streams[0]) if single else streams, dtype, arguments, named)
        outputs = tuple(one.to(was.dtype) for one, was in zip(outputs, given, strict=False)) if not single else outputs
        return self._result(outputs).to(dtype) if single else outputs

    def _run(self, streams: Streams, dtype: torch.dtype, arguments: Sequence[Any], named: dict[str, Any]) -> Streams:
        blocks = cast(list[Reversible], list(self))
        held, differentiated = Arguments.of(arguments, named)
        device = streams[0].device
        autocast = autocast_in_force(device)
        call = SequenceCall(
            arguments=held,
            device=device,
            function_dtype=dtype if dtype in _HALF_PRECISION and autocast is None else None,
            key=None,
            autocast_dtype=autocast,
        )
        # without a key, which would be a number of the program
        recorded = torch.compiler.is_exporting() or torch._C._is_tracing()  # noqa: SLF001
        graph = self._wants_graph((*streams, *differentiated)) and not recorded
        if self._is_keyed(blocks, graph=graph) and not recorded:
            call.key = draw_key()
        reconstructs = all(block.training or getattr(block, "reversible_in_evaluation", True) for block in blocks)
        undone = max(0, len(blocks) - max(0, self.keep_graphs)) if reconstructs and graph else 0
        call.last = undone - 1
        for index, block in enumerate(blocks):
            read = differentiated if isinstance(block, FUNCTIONS) else ()
            if index < undone:
                anchor = index == call.last or (self.anchor_every and (index + 1) % self.anchor_every == 0)
                streams = Step.forward(block, index, call, streams, read, anchor=bool(anchor))
            else:
                with call.block(index) if graph or call.key is not None else call.functions():
                    streams = block(*streams, *read)[: len(streams)]
        call.note_versions()
        return streams

    def _is_keyed(self, blocks: Iterable[Reversible], *, graph: bool) -> bool:
        """Whether a forward has random numbers of its own: where it, or what it is a part of, may be evaluated again.

        In training that may be without a graph here: `torch.utils.checkpoint`, or a reversible block that calls this sequence.
        """
        draws = self.preserve_rng_state or any(isinstance(block, BdiaCoupling | ExactBdiaCoupling) for block in blocks)
        return draws and (graph or called_by_another() or any(block.training for block in blocks))

    def _wants_graph(self, read: Streams) -> bool:
        return torch.is_grad_enabled() and (
            any(stream.requires_grad for stream in read) or any(one.requires_grad for one in self.parameters())
        )

    def _expect_streams(self, given: Streams, *, single: bool) -> None:
        """Check what is called, and with what.

        Raises:
            TypeError, ValueError: saying what was expected.
        """
        for index, block in enumerate(self):
            if not isinstance(block, Reversible):
                kind = type(block).__name__
                raise TypeError(
                    f"block {index} is not a reversible block (got {kind}): give functions to reversible(...)"
                )
        expected = 3 if self.coupling == "exact-bdia" else 2
        if not single and len(self) and isinstance(self[0], FUNCTIONS) and len(given) != expected:
            raise ValueError(
                f'coupling "{self.coupling}" has {expected} streams (got a tuple of {len(given)}); '
                "arguments of functions follow the streams"
            )
        if any(stream.is_complex() for stream in given):
            raise TypeError("streams must be real: use torch.view_as_real, and view_as_complex in the functions")

    def _streams(self, x: Tensor) -> Streams:
        if self.split is not None:
            if not -x.dim() <= self.split < x.dim():
                raise ValueError(f"split is dimension {self.split}, and the input has {x.dim()} (got {list(x.shape)})")
            if x.shape[self.split] % 2:
                raise ValueError(f"dimension {self.split} must be even to be split (got {list(x.shape)})")
            return x.chunk(2, self.split)
        if self.coupling == "momentum":
            return x, torch.zeros_like(x)
        if self.coupling == "exact-bdia":
            return x, x, torch.zeros_like(x, dtype=torch.int64)
        return x, x

    def _result(self, outputs: Streams) -> Tensor:
        if self.coupling in _NEWEST:
            return outputs[0]
        first, second = outputs
        return (first + second) / 2 if self.split is None else torch.cat((first, second), self.split)
