"""A block on its stage's device, in its type and layout; with a way around convolutions that oneDNN differentiates wrongly.

On processors without AVX-512, oneDNN copies the pixels that a 1x1 convolution with a stride reads into a workspace. In float32 and
channels-last, that has too little room for 2 to 7 channels: the gradient of the weights writes past its end, is wrong, or ends the process
(https://github.com/uxlfoundation/oneDNN/issues/6035). So the pixels are picked before the convolution, which is left without a stride.

Decision: where AVX-512 is in use, convolutions stay as they are, since oneDNN takes sound kernels there, which give other last bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor, nn

from petra_graph.blocks import Block
from petra_graph.executor.numerics import NumericsContext

_ROOM = 8
"""Channels from which the workspace is large enough."""
_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_OTHERS = ("SSE", "AVX2")
"""What limits oneDNN to older instructions in these variables; "AVX" alone as well."""


def place(block: Block, numerics: NumericsContext) -> Block:
    """Move a module to the stage's device, type and layout, in training mode.

    Buffers that a block names in `keep_dtype` keep their type. Embeddings have dense gradients, whatever `sparse` says: so plans count them, and clipping, replicas and most optimizers take them.
    """
    for module in block.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.sparse = False
    kept = [(part, name, one) for part in block.modules() for name, one in _kept_buffers(part)]
    block.to(device=numerics.device, dtype=numerics.dtype)
    for part, name, buffer in kept:
        setattr(part.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], buffer.to(numerics.device))
    if numerics.precision.memory_format == "channels-last":
        block.to(memory_format=torch.channels_last)
        # On the meta device, plans count what a processor would do.
        on_processor = numerics.device.type in {"cpu", "meta"} and numerics.dtype == torch.float32
        for module in block.modules() if on_processor and not _has_avx512() else ():
            if isinstance(module, nn.Conv2d) and _is_hit(module):
                module.register_forward_pre_hook(partial(_picked, stride=module.stride))
                module.stride = (1, 1)
    block.train()  # A block's own `train` may return nothing.
    return block


def _kept_buffers(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers whose type a block, or one that is wrapped, wants to be kept."""
    patterns = part.keep_dtype if isinstance(part, Block) else ()
    for pattern in patterns:
        yield from ((name, one) for name, one in part.named_buffers() if fnmatchcase(name, pattern))


def _is_hit(convolution: nn.Conv2d) -> bool:
    return (
        convolution.kernel_size == (1, 1)
        and max(convolution.stride) > 1
        and convolution.padding in {(0, 0), "valid"}
        and convolution.groups == 1
        and 1 < convolution.in_channels < _ROOM
    )


def _picked(_: nn.Module, read: Sequence[Tensor], *, stride: tuple[int, ...]) -> Tensor:
    (x,) = read
    return x[..., :: stride[0], :: stride[1]].contiguous(memory_format=torch.channels_last)


def _has_avx512() -> bool:
    limit = next(filter(None, map(os.environ.get, _VARIABLES)), "").upper()
    return torch.cpu._is_avx512_supported() and limit != "AVX" and not limit.startswith(_OTHERS)  # noqa: SLF001
