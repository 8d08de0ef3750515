"""Where inputs wait for their backward: as they are, encoded, in host memory, or both.

`precision.buffer_dtype` encodes them (`executor.encoded_tensors`): the forward ran on the input itself, the backward runs on
what is decoded. A buffered node that a reversible one feeds also sends that back as the activation to reconstruct from.

`precision.buffer_device = "cpu"` keeps them in host memory; for a stage on the CPU, they are there anyway. On CUDA,

    compute   forward of m     | forward of m+1   | backward of m ...
    copies         put m ------>     put m+1 ------> fetch m ->

copies go over a stream of their own, between the device and pinned memory. They are in order there, so a fetch finds
what was put; a put waits for the compute stream, which made the input, and the backward's computations wait for the
fetch. Memory lives as long as copies use it: PyTorch's allocators are told which streams use a block (`record_stream`)
and give pinned blocks out again only after copies that were issued with them have ended. The host never waits.

Decision: kept graphs and parameter versions are neither encoded nor moved, and what the head's `forward_backward` leaves for its
backward is not either: it is a message that waits to be sent, next but for the schedule "fill-drain".
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Streams
from petra_graph.executor.encoded_tensors import EncodedTensor, EncodedTensors, decode, encode
from petra_graph.executor.numerics import NumericsContext
from petra_graph.spec.model import StoredDtype


class HostCopy:
    """Tensors of a CUDA device in pinned memory; int8 scales, of four bytes, stay where they are."""

    def __init__(self, carried: EncodedTensors, copies: torch.cuda.Stream) -> None:
        self.copies = copies
        self._fetched: _Fetched | None = None
        copies.wait_stream(torch.cuda.current_stream(copies.device))
        with torch.cuda.stream(copies):
            self.host = _each(carried, self._put)

    def fetch(self) -> None:
        """Begin to copy back, unless that was begun."""
        self._begun()

    def recall(self) -> EncodedTensors:
        """Return the tensors on the device; what is computed with them next waits for the copies."""
        fetched = self._begun()
        compute = torch.cuda.current_stream(self.copies.device)
        compute.wait_event(fetched.ready)
        for value in fetched.carried:
            _payload(value).record_stream(compute)
        return fetched.carried

    def _begun(self) -> _Fetched:
        if self._fetched is None:
            with torch.cuda.stream(self.copies):
                back = _each(self.host, lambda host: host.to(self.copies.device, non_blocking=True))
                self._fetched = _Fetched(carried=back, ready=self.copies.record_event())
        return self._fetched

    def _put(self, tensor: Tensor) -> Tensor:
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.copies)
        return host


@frozen(kw_only=True)
class _Fetched:
    """Copies on the device, there from an event on."""

    carried: EncodedTensors
    ready: torch.cuda.Event


StashedInput = EncodedTensors | HostCopy


@frozen(kw_only=True)
class ActivationStore:
    """One stage's way to keep inputs."""

    stored: StoredDtype
    copies: torch.cuda.Stream | None
    """Leads to host memory; None: what waits stays on the stage's device."""

    @classmethod
    def of(cls, evaluation: NumericsContext) -> ActivationStore:
        """Return what the precision asks for on the evaluation's device."""
        device, precision = evaluation.device, evaluation.precision
        offload = precision.buffer_device == "cpu" and device.type == "cuda"
        return cls(stored=precision.buffer_dtype, copies=_copies(device) if offload else None)

    def keep(self, streams: Streams) -> StashedInput:
        """Return what is kept of the streams."""
        carried = encode(streams, self.stored)
        return carried if self.copies is None else HostCopy(carried, self.copies)


def fetch(held: StashedInput) -> None:
    """Begin to bring back what will be restored soon."""
    if isinstance(held, HostCopy):
        held.fetch()


def restore(held: StashedInput) -> Streams:
    """Return the streams; where nothing was encoded or moved, the same tensors."""
    return decode(held.recall() if isinstance(held, HostCopy) else held)


def _copies(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _payload(value: Tensor | EncodedTensor) -> Tensor:
    return value.payload if isinstance(value, EncodedTensor) else value


def _each(carried: EncodedTensors, change: Callable[[Tensor], Tensor]) -> EncodedTensors:
    return tuple(
        attrs.evolve(value, payload=change(value.payload)) if isinstance(value, EncodedTensor) else change(value)
        for value in carried
    )
