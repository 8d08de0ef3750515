"""The numerics of a stage's nodes: random keys, precision, memory format; and blocks in them.

This module alone fixes them, so that a forward and its recomputation agree in everything but the parameters.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Any, Self

import torch
from attrs import field, frozen
from torch import Tensor, nn

from petra_graph.blocks import Block, Streams
from petra_graph.blocks.randomness import Keyed, generators_of, may_draw, random_key
from petra_graph.plugins.data_set import DataFacts
from petra_graph.program.channels import IMAGE_DIMENSIONS, dense_strides
from petra_graph.spec.model import PrecisionSpec, Spec

_NOTHING = nullcontext()


@contextmanager
def _both(one: AbstractContextManager[Any], other: AbstractContextManager[Any]) -> Iterator[None]:
    with one, other:
        yield


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
    facts: DataFacts | None = None
    """Of the samples, which say how images are normalised; None: they are not."""
    _keyed: dict[str, Keyed | nullcontext[None]] = field(factory=dict, init=False, eq=False)
    """By node, or other part of the stage."""

    @classmethod
    def of_run(cls, spec: Spec, facts: DataFacts, device: str = "cpu", **more: Any) -> Self:
        """Return the numerics with which a run evaluates nodes on a device."""
        return cls(device=torch.device(device), precision=spec.precision, seed=spec.run.seed, facts=facts, **more)

    @cached_property
    def dtype(self) -> torch.dtype:
        """Of floating-point streams and parameters; bfloat16 is for what blocks compute."""
        return torch.float64 if self.precision.compute == "float64" else torch.float32

    @cached_property
    def mean_and_std(self) -> Sequence[Tensor]:
        """By channel, of samples in [0, 1]; made once, for the host would wait for each copy to a GPU."""
        if self.facts is None or self.facts.mean is None or self.facts.std is None:
            return ()
        return [torch.tensor(one, dtype=self.dtype, device=self.device) for one in (self.facts.mean, self.facts.std)]

    @cached_property
    def _image_format(self) -> torch.memory_format:
        return torch.channels_last if self.precision.memory_format == "channels-last" else torch.contiguous_format

    @cached_property
    def _autocast(self) -> torch.autocast:
        kind, mixed = "cpu" if self.device.type == "meta" else self.device.type, self.precision.compute == "bfloat16"
        # It keeps no cast parameters: torch before 2.10 hands those that an inverse has cast, without a graph, to the forward that is
        # differentiated after it, and parameters then get no gradient.
        return torch.autocast(kind, torch.bfloat16, enabled=mixed, cache_enabled=False)

    def node(self, name: str, micro_batch: int | None, module: Block | None = None) -> AbstractContextManager[Any]:
        """Return a context with the random key and the arithmetic of node `name` on a training micro-batch; None: in an evaluation.

        It has what the run has: in float32, the key alone.
        """
        draws = _NOTHING if self._keyed.get(name) is _NOTHING else self.draws(name, micro_batch, module)
        arithmetic = self.arithmetic()
        return draws if arithmetic is _NOTHING else _both(draws, arithmetic)

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Return a context with autocast to bfloat16, or without, as the precision says."""
        autocast = self._autocast
        needed = self.precision.compute == "bfloat16" or torch.is_autocast_enabled(autocast.device)
        return autocast if needed else _NOTHING

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
            per_channel = (1, -1, *(1,) * (sample.dim() - 2))
            if self.mean_and_std:
                mean, std = (one.view(per_channel) for one in self.mean_and_std)
                scaled.sub_(mean).div_(std)
            return scaled
        return _canonical(sample, self.dtype, self.memory_format(sample.dim()))


def place(block: Block, numerics: NumericsContext) -> Block:
    """Move a module to the stage's device, type and layout, in training mode.

    Buffers that a block names in `keep_dtype` keep their type. Embeddings have dense gradients, whatever `sparse` says: so plans count them, and clipping, replicas and most optimizers take them.
    """
    for module in block.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False
    kept = [
        (part, name, one)
        for part in block.modules()
        if isinstance(part, Block)
        for name, one in part.named_buffers()
        if any(fnmatchcase(name, pattern) for pattern in part.keep_dtype)
    ]
    block.to(device=numerics.device, dtype=numerics.dtype)
    for part, name, buffer in kept:
        setattr(part.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], buffer.to(numerics.device))
    if numerics.precision.memory_format == "channels-last":
        block.to(memory_format=torch.channels_last)
        # On the meta device, plans count what a processor would do.
        if numerics.device.type in {"cpu", "meta"} and numerics.dtype == torch.float32 and not _has_avx512():
            for module in block.modules():
                if isinstance(module, nn.Conv2d) and _is_broken(module):
                    module.register_forward_pre_hook(partial(picked, stride=module.stride))
                    module.stride = (1, 1)
    block.train()  # A block's own `train` may return nothing.
    return block


def _is_broken(convolution: nn.Conv2d) -> bool:
    """Whether oneDNN writes the gradient of the weights past the end of its workspace, in channels-last without AVX-512.

    https://github.com/uxlfoundation/oneDNN/issues/6035: of 1x1 convolutions with a stride, for 2 to 7 channels.
    """
    strided = convolution.kernel_size == (1, 1) and max(convolution.stride) > 1 and convolution.groups == 1
    return strided and convolution.padding in {(0, 0), "valid"} and 1 < convolution.in_channels < 8  # noqa: PLR2004


def picked(_: nn.Module, read: Sequence[Tensor], *, stride: tuple[int, ...]) -> Tensor:
    """Pick the pixels that the convolution reads, which is then left without a stride."""
    return read[0][..., :: stride[0], :: stride[1]].contiguous(memory_format=torch.channels_last)


def _has_avx512() -> bool:
    limit = (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "").upper()
    return torch.cpu._is_avx512_supported() and limit != "AVX" and not limit.startswith(("SSE", "AVX2"))  # noqa: SLF001


def _canonical(stream: Tensor, dtype: torch.dtype, layout: torch.memory_format) -> Tensor:
    dense = (stream.to(dtype) if stream.is_floating_point() else stream).contiguous(memory_format=layout)
    if 1 not in dense.shape:
        return dense
    # Any stride is dense where a dimension has one element, and kernels are chosen by strides.
    strides = dense_strides(tuple(dense.shape), channels_last=layout == torch.channels_last)
    return dense if dense.stride() == strides else dense.as_strided(dense.shape, strides)
