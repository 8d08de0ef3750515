"""Meters of what runs: live bytes, FLOPs, memory traffic; and operations that the meta device gets wrong.

A storage counts from its first appearance in the outputs of an operation until it is freed, exactly, on the CPU and the meta device alike.
Memory that a kernel allocates and frees inside itself is not counted.

FLOPs follow from shapes, by `torch.utils.flop_counter`. Those of attention and LSTMs are of the matrix products that torch does where it has no
kernel for all of them: a plan shall not depend on the kernels that were at hand where it was made. Backward there are twice as many.

Without memory (meta device, fake tensors) some operations are replaced:

convolution             on the meta device the contiguous layout comes out whatever goes in; the CPU's and cuDNN's follow
                        input and weight into channels-last, and a wrong layout costs a copy at every node's end;
                        torch 2.8 returns the gradient of the weight contiguous, too
batch normalisation     torch's runs the arithmetic step by step, which took most of the time of a plan, and keeps
                        statistics of bfloat16 in bfloat16, where the CPU has float32
attention               the meta device multiplies whole matrices, where devices have kernels that keep none
sums, ReLU's gradient   torch has them in Python, and there are many
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from petra_graph.program.channels import IMAGE_DIMENSIONS
from petra_graph.program.node_costs import Work


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages that come to life inside the context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._counted: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, or its replacement, and count the storages of its results that were not those of its arguments."""
        kwargs = kwargs or {}
        given = tensors((args, kwargs))
        result = _replaced(func, args)(*args, **kwargs)
        made, before = tensors(result), {id(one.untyped_storage()) for one in given}
        for storage in (one.untyped_storage() for one in made):
            if id(storage) not in before:
                self.count(storage)
        self.ran(func, (*given, *made), lambda: flops_of(func, args, kwargs, result))
        return result

    def ran(self, func: Any, read_and_made: Sequence[Tensor], flops: Callable[[], int]) -> None:
        """Do nothing more; a subclass may count more than bytes."""

    def count(self, storage: torch.UntypedStorage) -> None:
        """Count a storage from now until it is freed, unless it counts already."""
        key, size = id(storage), storage.nbytes()
        if key in self._counted and self._counted[key]() is storage:
            return
        owner = self.grow(size)

        def freed(_: object) -> None:
            self._counted.pop(key, None)
            self.shrink(size, owner)

        self._counted[key] = weakref.ref(storage, freed)

    def grow(self, size: int) -> int:
        """Add bytes; return their owner, for whom a subclass may count."""
        self.live += size
        self.peak = max(self.peak, self.live)
        return 0

    def shrink(self, size: int, owner: int) -> None:
        """Take the bytes of an owner away."""
        self.live -= size


def storages(tree: Any) -> list[torch.UntypedStorage]:
    """Return the storage of every tensor in nested tuples, lists and dictionaries, as often as it appears."""
    return [tensor.untyped_storage() for tensor in tensors(tree)]


def tensors(tree: Any) -> list[Tensor]:
    """Return every tensor in nested tuples, lists and dictionaries; of sparse ones, which have no storage, indices and values."""
    if isinstance(tree, Tensor):
        return [tree._indices(), tree._values()] if tree.is_sparse else [tree]  # noqa: SLF001  indices() needs a coalesced one
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple | list) else ()
    return [one for part in parts for one in tensors(part)]


def distinct_bytes(of: Iterable[Tensor]) -> int:
    """Return the bytes of the memory of tensors, shared memory counted once."""
    found = {id(storage): storage for storage in storages(tuple(of))}
    return sum(storage.nbytes() for storage in found.values())


class Tally(LiveBytes):  # type: ignore[no-untyped-call]
    """Counts the FLOPs of operations, and the bytes that their kernels read and write; what one calls inside itself does not pass here."""

    def __init__(self) -> None:
        super().__init__()
        self._flops = self._traffic = self._kernels = self._start = 0

    def ran(self, func: Any, read_and_made: Sequence[Tensor], flops: Callable[[], int]) -> None:
        """Add what an operation did."""
        self._flops += flops()
        # What only makes a view, allocates, or asks (fake tensors ask for devices) moves nothing.
        allocates = str(func).removeprefix("aten.").startswith(("empty", "new_empty"))
        if not (func.is_view or func.namespace == "prim" or allocates):
            # Of an expanded tensor count the bytes that there are.
            self._traffic += sum(min(one.nbytes, one.untyped_storage().nbytes()) for one in read_and_made)
            self._kernels += 1

    def lap(self) -> Work:
        """Return what ran since the last call, and start counting again; what is alive beyond its start counts as kept."""
        work = Work(
            flops=self._flops,
            traffic_bytes=self._traffic,
            kernels=self._kernels,
            working_bytes=self.peak - self._start,
            accumulating_bytes=self.peak - self._start,
            kept_bytes=self.live - self._start,
        )
        self._flops = self._traffic = self._kernels = 0
        self._start = self.peak = self.live
        return work


def flops_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Return the FLOPs of an operation; a multiply-add counts two."""
    name = func.name().partition(".")[0].removeprefix("aten::")
    backward = name.endswith("_backward")
    if name.startswith("_scaled_dot_product_"):  # how torch names all kernels of attention
        # Key and value may have fewer heads than the query, which share them.
        query, key, value = (tensor.shape for tensor in args[backward : backward + 3])
        forward = 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])
    elif name.startswith("mkldnn_rnn_layer"):
        rows, *weights = (tensor.shape for tensor in args[:3])
        forward = 2 * prod(rows[:-1]) * sum(map(prod, weights))
    else:
        formula = flop_registry.get(func._overloadpacket)  # noqa: SLF001  as FlopCounterMode looks it up
        return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))
    return int(2 * forward if backward else forward)


class NotOnMeta(Exception):
    """An operation whose meta implementation differs from that of devices with memory."""


def _replaced(func: Any, args: Sequence[Any]) -> Callable[..., Any]:
    """Return an operation or what stands for it, where its first argument has no memory."""
    first = args[0] if args else None
    if isinstance(first, FakeTensor):
        return _ANYWHERE.get(func, func)
    if isinstance(first, Tensor) and first.is_meta:
        if func in _POINTWISE and isinstance(other := args[1], Tensor) and other.is_meta:
            of_both = [(one.shape, one.dtype, one.stride()) for one in (first, other)]
            if of_both[0] == of_both[1] and 0 not in first.stride():
                return lambda x, *_, **__: torch.empty_like(x)
        return _ANYWHERE.get(func) or _ON_META.get(func) or func
    return func  # type: ignore[no-any-return]


def _laid_out(convolution: Callable[..., Any], operands: slice) -> Callable[..., Any]:
    """Return a convolution whose images are in channels-last where its input or its weight is; these are its `operands`."""

    def run(*args: Any) -> Any:
        found = convolution(*args)
        x, weight = args[operands]
        if x.dim() != IMAGE_DIMENSIONS or torch.channels_last not in map(suggest_memory_format, (x, weight)):
            return found
        several = (found,) if isinstance(found, Tensor) else found
        made = [
            torch.empty_like(one, memory_format=torch.channels_last) if one is not None and one.dim() > 1 else one
            for one in several
        ]
        return made[0] if isinstance(found, Tensor) else tuple(made)

    return run


def _batch_norm(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, training, _, _ = others
    mean, inverse_std = (x.new_empty(x.shape[1] if training else 0, dtype=_statistics_dtype(x)) for _ in range(2))
    return torch.empty_like(x), mean, inverse_std


def _batch_norm_backward(*arguments: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    _, x, weight, *_, (needs_x, needs_weight, needs_bias) = arguments
    like = x.new_empty(x.shape[1], dtype=_statistics_dtype(x)) if weight is None else weight
    return (
        torch.empty_like(x) if needs_x else None,
        torch.empty_like(like) if needs_weight else None,
        torch.empty_like(like) if needs_bias else None,
    )


def _no_attention(*_: Any) -> Tensor:
    raise NotOnMeta("scaled_dot_product_attention")


def _statistics_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


_ANYWHERE: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: _batch_norm,
    torch.ops.aten.native_batch_norm_backward.default: _batch_norm_backward,
}
# Of two dense tensors alike, the result is like both.
_POINTWISE = {torch.ops.aten.add.Tensor, torch.ops.aten.sub.Tensor, torch.ops.aten.threshold_backward.default}
_ON_META: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.convolution.default: _laid_out(torch.ops.aten.convolution.default, slice(0, 2)),
    torch.ops.aten.convolution_backward.default: _laid_out(torch.ops.aten.convolution_backward.default, slice(1, 3)),
    torch.ops.aten._safe_softmax.default: _no_attention,  # noqa: SLF001  attention by matrix products has it, and nothing else
}
