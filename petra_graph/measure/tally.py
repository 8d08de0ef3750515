"""The cost of what runs: live bytes, FLOPs, memory traffic.

Bytes of live tensors are counted at dispatch level, exactly, on the CPU and the meta device alike. The outputs of every
operation pass here; a storage counts from its first appearance until it is freed. Memory that a kernel allocates and
frees inside itself is not counted.

FLOPs of kernels that do several matrix products at once follow from shapes: one number whatever kernel runs. Which
kernel torch picks depends on device, processor, mask, dropout and sizes, and for some it has no formula. A plan shall
not depend on what was at hand where it was made, so what counts are the matrix products that torch does where it has no
such kernel; backward there are twice as many.

attention   forward     scores = query keyᵀ, output = softmax(scores) value
            backward    the gradients of softmax(scores), value, query and key
            Kernels that keep no scores compute them once more in their backward, and may skip what a mask hides.
            Neither counts.
LSTM        forward     gates = input weight_inputᵀ + hidden weight_hiddenᵀ, at every step
            backward    the gradients of all four; of the first hidden state too, which is often not asked for
            OneDNN's kernel, for number types that the processor has; on the meta device and elsewhere there is none.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import torch
from attrs import frozen
from torch.utils._python_dispatch import TorchDispatchMode

from petra_graph.measure import meta_kernels


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts storages that come to life inside the context."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._counted: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count the new storages of its result."""
        before = set(map(id, storages((args, kwargs))))
        result = self.call(func, args, kwargs or {})
        for storage in storages(result):
            if id(storage) not in before:
                self.count(storage)
        return result

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation."""
        return func(*args, **kwargs)

    def count(self, storage: torch.UntypedStorage) -> None:
        """Count a storage from now on, unless it counts already."""
        key = id(storage)
        if key in self._counted and self._counted[key]() is storage:
            return
        size = storage.nbytes()
        owner = self.grow(size)

        def freed(_: object) -> None:
            self._counted.pop(key, None)
            self.shrink(size, owner)

        self._counted[key] = weakref.ref(storage, freed)

    def grow(self, size: int) -> int:
        """Add bytes; return the number of their owner."""
        self.live += size
        self.peak = max(self.peak, self.live)
        return 0

    def shrink(self, size: int, owner: int) -> None:
        """Take the bytes of an owner away."""
        self.live -= size


def storages(tree: Any) -> list[torch.UntypedStorage]:
    """Return the storage of every tensor in nested tuples, lists and dictionaries, as often as it appears."""
    return [tensor.untyped_storage() for tensor in tensors(tree)]


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return every tensor in nested tuples, lists and dictionaries: the arguments and results of operations.

    Sparse ones, such as the gradient of `nn.Embedding(sparse=True)`, have no storage: their indices and values do.
    """
    found: list[torch.Tensor] = []
    _append_tensors((tree,), found)
    return found


def _append_tensors(parts: Iterable[Any], found: list[torch.Tensor]) -> None:
    for part in parts:
        if isinstance(part, torch.Tensor):
            found += (part._indices(), part._values()) if part.is_sparse else (part,)  # noqa: SLF001  indices() needs a coalesced one
        elif isinstance(part, tuple | list):
            _append_tensors(part, found)
        elif isinstance(part, dict):
            _append_tensors(part.values(), found)


def distinct_bytes(of: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the memory of tensors, shared memory counted once."""
    found = {id(storage): storage for storage in storages(tuple(of))}
    return sum(storage.nbytes() for storage in found.values())


@frozen(kw_only=True)
class Lap:
    """What ran since the lap before."""

    flops: int
    traffic_bytes: int
    kernels: int
    working_bytes: int
    """Most bytes alive beyond those at the lap's start."""
    left_bytes: int
    """Alive at its end beyond those; negative where more was freed."""


class Tally(LiveBytes):  # type: ignore[no-untyped-call]
    """Counts operations by torch's own formulas, and the bytes that their kernels read and write.

    Formulas are those of `torch.utils.flop_counter.FlopCounterMode` for convolutions and matrix products; kernels
    that do several products count alike, whichever runs. What one calls inside itself does not pass here.
    """

    def __init__(self) -> None:
        super().__init__()
        self._flops = 0
        self._traffic = 0
        self._kernels = 0
        self._start = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and add what it did."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self._flops += _flops(func, args, kwargs or {}, result)
        if not (func.is_view or _moves_nothing(func)):
            self._traffic += _bytes((args, kwargs)) + _bytes(result)
            self._kernels += 1
        return result

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation; on the meta device, with the layouts of devices that have memory."""
        return meta_kernels.call(func, args, kwargs)

    def lap(self) -> Lap:
        """Return what ran since the last call, and start counting again."""
        lap = Lap(
            flops=self._flops,
            traffic_bytes=self._traffic,
            kernels=self._kernels,
            working_bytes=self.peak - self._start,
            left_bytes=self.live - self._start,
        )
        self._flops = self._traffic = self._kernels = 0
        self._start = self.peak = self.live
        return lap


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    whole = kernel_flops(func, args)
    if whole is not None:
        return whole
    from torch.utils.flop_counter import flop_registry  # imports triton, where that is installed

    formula = flop_registry.get(func._overloadpacket)  # noqa: SLF001  as FlopCounterMode looks it up
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))


def _moves_nothing(func: Any) -> bool:
    """Whether an operation only allocates, or only asks (fake tensors ask for devices)."""
    return func.namespace == "prim" or str(func).removeprefix("aten.").startswith(("empty", "new_empty"))


def _bytes(tree: Any) -> int:
    """Return the bytes of tensors; of an expanded one, those that there are."""
    return sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in tensors(tree))


_ATTENTION = "aten::_scaled_dot_product_"
"""How torch names all kernels of attention."""
_LSTM = "aten::mkldnn_rnn_layer"


def kernel_flops(func: Any, args: Sequence[Any]) -> int | None:
    """Return the FLOPs of one of these kernels, None for another operation.

    Where attention or an LSTM is several operations, those count as what they are.
    """
    name = func.name().partition(".")[0]
    backward = name.endswith("_backward")
    if name.startswith(_ATTENTION):
        forward = _attention(*(tensor.shape for tensor in args[backward : backward + 3]))
    elif name.startswith(_LSTM):
        forward = _products(*(tensor.shape for tensor in args[:3]))
    else:
        return None
    return 2 * forward if backward else forward


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int:
    """Key and value may have fewer heads than the query, which share them."""
    return 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _products(rows: Sequence[int], *weights: Sequence[int]) -> int:
    return 2 * prod(rows[:-1]) * sum(map(prod, weights))
