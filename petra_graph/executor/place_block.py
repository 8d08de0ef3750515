"""A block on its stage's device, in its type and layout."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor, nn

from petra_graph.blocks import Block
from petra_graph.executor.numerics import NumericsContext


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
                    module.register_forward_pre_hook(partial(_picked, stride=module.stride))
                    module.stride = (1, 1)
    block.train()  # A block's own `train` may return nothing.
    return block


def _is_broken(convolution: nn.Conv2d) -> bool:
    """Whether oneDNN writes the gradient of the weights past the end of its workspace, in channels-last without AVX-512.

    https://github.com/uxlfoundation/oneDNN/issues/6035: of 1x1 convolutions with a stride, for 2 to 7 channels.
    """
    strided = convolution.kernel_size == (1, 1) and max(convolution.stride) > 1 and convolution.groups == 1
    return strided and convolution.padding in {(0, 0), "valid"} and 1 < convolution.in_channels < 8  # noqa: PLR2004


def _picked(_: nn.Module, read: Sequence[Tensor], *, stride: tuple[int, ...]) -> Tensor:
    """Pick the pixels that the convolution reads, which is then left without a stride."""
    return read[0][..., :: stride[0], :: stride[1]].contiguous(memory_format=torch.channels_last)


def _has_avx512() -> bool:
    limit = (os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or "").upper()
    return torch.cpu._is_avx512_supported() and limit != "AVX" and not limit.startswith(("SSE", "AVX2"))  # noqa: SLF001
