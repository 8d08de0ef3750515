"""FLOPs and memory traffic of what runs, beside its live bytes."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from torch.utils.flop_counter import flop_registry

from petra_graph.measure import meta_kernels
from petra_graph.measure.kernel_flops import kernel_flops
from petra_graph.measure.live_bytes import LiveBytes, tensors


@frozen(kw_only=True)
class Lap:
    """What ran since the lap before."""

    flops: int
    traffic_bytes: int
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
        self._start = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and add what it did."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self._flops += _flops(func, args, kwargs or {}, result)
        if not (func.is_view or _moves_nothing(func)):
            self._traffic += _bytes((args, kwargs)) + _bytes(result)
        return result

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation; on the meta device, with the layouts of devices that have memory."""
        return meta_kernels.call(func, args, kwargs)

    def lap(self) -> Lap:
        """Return what ran since the last call, and begin anew."""
        lap = Lap(
            flops=self._flops,
            traffic_bytes=self._traffic,
            working_bytes=self.peak - self._start,
            left_bytes=self.live - self._start,
        )
        self._flops = self._traffic = 0
        self._start = self.peak = self.live
        return lap


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    whole = kernel_flops(func, args)
    if whole is not None:
        return whole
    formula = flop_registry.get(func._overloadpacket)  # noqa: SLF001  as FlopCounterMode looks it up
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))


def _moves_nothing(func: Any) -> bool:
    """Whether an operation only allocates, or only asks (fake tensors ask for devices)."""
    return func.namespace == "prim" or str(func).removeprefix("aten.").startswith(("empty", "new_empty"))


def _bytes(tree: Any) -> int:
    """Return the bytes of tensors; of an expanded one, those that there are."""
    return sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in tensors(tree))
