"""The numerics of a stage's nodes: random keys, precision, memory format.

This module alone fixes them, so that a forward and its recomputation agree in everything but the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, lru_cache
from typing import Any, Self

import torch
from attrs import field, frozen
from torch import Tensor

from petra_graph.blocks import Block, Head, Reversible, Streams
from petra_graph.blocks.grid import grid, grid_limit, rounded
from petra_graph.blocks.randomness import Keyed, generators_of, may_draw, random_key
from petra_graph.errors import RunFailed
from petra_graph.executor.deferred_reads import DeferredCheck
from petra_graph.kinds.data_facts import DataFacts
from petra_graph.program.message_layout import IMAGE_DIMENSIONS, dense_strides
from petra_graph.spec.model import PrecisionSpec, Spec

STREAM_DTYPE = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.float32}
"""The type of streams and parameters, by `precision.compute`."""

_NOTHING = nullcontext()


@frozen(kw_only=True)
class Normalisation:
    """Per-channel mean and standard deviation of samples in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, facts: DataFacts) -> Normalisation | None:
        """Return the normalisation that the data set declares, None where it declares none."""
        if facts.mean is None or facts.std is None:
            return None
        return cls(mean=facts.mean, std=facts.std)


class _InTurn:
    """Contexts as one, entered in order and left in the opposite one; not within itself."""

    def __init__(self, *contexts: AbstractContextManager[Any]) -> None:
        self._contexts = contexts

    def __enter__(self) -> None:
        for one in self._contexts:
            one.__enter__()

    def __exit__(self, *raised: object) -> None:
        for one in reversed(self._contexts):
            one.__exit__(*raised)


@frozen(kw_only=True, slots=False)
class NumericsContext:
    """The numerics with which one stage evaluates its nodes.

    Streams between nodes are dense, in one floating-point type and one memory format; the outputs of a block are brought
    to that form (under bfloat16 autocast, or where a block returns views).
    """

    device: torch.device
    precision: PrecisionSpec
    seed: int
    replica: int = 0
    normalisation: Normalisation | None = None
    deferred: bool = False
    """Whether the magnitudes of streams on a grid are read later, together (`deferred_reads`)."""
    _keyed: dict[str, Keyed | nullcontext[None]] = field(factory=dict, init=False, eq=False)
    """By node, or other part of the stage."""

    @classmethod
    def of_run(cls, spec: Spec, facts: DataFacts, device: str = "cpu", **more: Any) -> Self:
        """Return the numerics with which a run evaluates nodes on a device."""
        normalisation, seed = Normalisation.of(facts), spec.run.seed
        return cls(
            device=torch.device(device), precision=spec.precision, seed=seed, normalisation=normalisation, **more
        )

    @cached_property
    def dtype(self) -> torch.dtype:
        """Of floating-point streams and parameters."""
        return STREAM_DTYPE[self.precision.compute]

    @cached_property
    def grid_bits(self) -> int | None:
        """The streams' grid is the multiples of 2^-grid_bits; None: no grid."""
        return self.precision.grid_bits if self.precision.streams == "grid" else None

    @cached_property
    def _image_format(self) -> torch.memory_format:
        return torch.channels_last if self.precision.memory_format == "channels-last" else torch.contiguous_format

    @cached_property
    def _autocast_type(self) -> str:
        return "cpu" if self.device.type == "meta" else self.device.type

    @cached_property
    def _changes_arithmetic(self) -> bool:
        """Whether a node computes otherwise than torch does without a context."""
        return self.precision.compute == "bfloat16" or self.grid_bits is not None

    @cached_property
    def _arithmetic(self) -> AbstractContextManager[Any]:
        """Autocast as the precision says, and the grid if there is one.

        Autocast keeps no cast parameters: torch before 2.10 hands those cast by an inverse, which have no graph, to the
        forward that is differentiated after it, and parameters then get no gradient.
        """
        mixed = self.precision.compute == "bfloat16"
        autocast = torch.autocast(self._autocast_type, torch.bfloat16, enabled=mixed, cache_enabled=False)
        return autocast if self.grid_bits is None else _InTurn(autocast, grid(self.grid_bits))

    @cached_property
    def _magnitudes(self) -> DeferredCheck[str]:
        """By node."""
        bits = self.grid_bits
        return DeferredCheck(lambda largest: bits is None or largest < grid_limit(self.dtype, bits))

    def node(self, name: str, micro_batch: int | None, module: Block | None = None) -> AbstractContextManager[Any]:
        """Return a context with the random key and the arithmetic of node `name` on a training micro-batch; None: in an evaluation.

        It has what the run has: in float32, the key alone.
        """
        draws = self.draws(name, micro_batch, module)
        if self._changes_arithmetic or torch.is_autocast_enabled(self._autocast_type):
            return _InTurn(draws, self.arithmetic())
        return draws

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Return a context with autocast to bfloat16, and the grid of sums, as the precision says; it changes nothing where nothing would differ."""
        changes = self._changes_arithmetic or torch.is_autocast_enabled(self._autocast_type)
        return self._arithmetic if changes else _NOTHING

    def draws(self, name: str, micro_batch: int | None, module: Block | None = None) -> AbstractContextManager[None]:
        """Return a context with the random key of node `name`, or of another part of a stage.

        All evaluation batches have one key, so that neither their number nor their size moves a generator. A module that draws nothing needs none.
        """
        keyed = self._keyed.get(name)
        if keyed is None:
            keyed = self._keyed[name] = Keyed(0, generators_of(self.device)) if may_draw(module) else _NOTHING
        if isinstance(keyed, Keyed):
            keyed.key = random_key(self.seed, name, "evaluation" if micro_batch is None else micro_batch, self.replica)
            keyed.micro_batch = micro_batch
        return keyed

    def canonicalize(self, streams: Sequence[Tensor]) -> Streams:
        """Return the streams in their common type and memory format; those that have it already are not copied."""
        dtype, images, found = self.dtype, self._image_format, []
        for stream in streams:
            layout = images if stream.dim() == IMAGE_DIMENSIONS else torch.contiguous_format
            typed = stream.dtype == dtype or not stream.is_floating_point()
            as_they_are = typed and stream.is_contiguous(memory_format=layout) and 1 not in stream.shape
            found.append(stream if as_they_are else _canonical(stream, dtype, layout))
        return tuple(found)

    def finalize(self, name: str, module: Block, streams: Sequence[Tensor]) -> Streams:
        """Canonicalize the outputs of a node; on a grid, round those that no coupling has rounded, and check the range.

        Raises:
            RunFailed: a stream has left the range in which sums on the grid are exact.
        """
        found = self.canonicalize(streams)
        return found if self.grid_bits is None else self.on_grid(name, module, found)

    def on_grid(self, name: str, module: Block, streams: Streams) -> Streams:
        """Do what `finalize` does on a grid."""
        bits = self.grid_bits
        if bits is None or isinstance(module, Head):
            return streams
        if not isinstance(module, Reversible):
            streams = tuple(rounded(stream, bits) if stream.is_floating_point() else stream for stream in streams)
        self.check_range(name, streams)
        return streams

    def check_range(self, name: str, streams: Streams) -> None:
        """Check that streams are in the range of the grid, now or at the next reading.

        Raises:
            RunFailed: a stream has left it.
        """
        self._magnitudes.add(name, largest_magnitude(streams))
        if not self.deferred:
            self.check()

    def check(self) -> None:
        """Read the magnitudes since the last reading.

        Raises:
            RunFailed: a stream has left the range of the grid.
        """
        found = self._magnitudes.read() if self._magnitudes else None
        if found is not None:
            name, largest = found
            bits = self.grid_bits
            assert bits is not None
            limit = grid_limit(self.dtype, bits)
            raise RunFailed(
                f'node "{name}": a stream has reached {largest:.4g}, and sums on the grid are exact below {limit:g}',
                hint=f"lower precision.grid_bits ({bits}), or let a buffered node normalise the streams more often",
            )

    def memory_format(self, dimensions: int) -> torch.memory_format:
        """Return the memory format of a stream with this number of dimensions, the batch's included."""
        return self._image_format if dimensions == IMAGE_DIMENSIONS else torch.contiguous_format

    def prepare(self, sample: Tensor) -> Tensor:
        """Return stored samples as the first node reads them: images normalised, others cast.

        uint8 [n, c, h, w] becomes (sample / 255 - mean) / std in the streams' type; integers that are not images
        (tokens) stay as they are.
        """
        if sample.dtype == torch.uint8:
            scaled = sample.to(self.dtype, memory_format=self.memory_format(sample.dim())).div_(255)
            if self.normalisation is None:
                return scaled
            per_channel = (1, -1, *(1,) * (sample.dim() - 2))
            # Made once on a GPU: the host would wait for each copy.
            constant = _constant if scaled.is_cuda else _constant.__wrapped__
            mean = constant(self.normalisation.mean, scaled.dtype, scaled.device).view(per_channel)
            std = constant(self.normalisation.std, scaled.dtype, scaled.device).view(per_channel)
            return scaled.sub_(mean).div_(std)
        return _canonical(sample, self.dtype, self.memory_format(sample.dim()))


def _canonical(stream: Tensor, dtype: torch.dtype, layout: torch.memory_format) -> Tensor:
    dense = (stream.to(dtype) if stream.is_floating_point() else stream).contiguous(memory_format=layout)
    if 1 not in dense.shape:
        return dense
    # Any stride is dense where a dimension has one element, and kernels are chosen by strides.
    strides = dense_strides(tuple(dense.shape), channels_last=layout == torch.channels_last)
    return dense if dense.stride() == strides else dense.as_strided(dense.shape, strides)


@lru_cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def largest_magnitude(streams: Streams) -> Tensor | float:
    """Return the largest absolute value in floating-point streams."""
    floating = [stream for stream in streams if stream.is_floating_point() and stream.numel()]
    return torch.stack([stream.detach().abs().amax() for stream in floating]).amax() if floating else 0.0
