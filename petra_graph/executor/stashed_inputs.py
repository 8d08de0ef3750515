"""The inputs of a stage that wait for their backward: unchanged, encoded, in host memory, or both.

`precision.buffer_dtype` encodes them (`executor.encoded_tensors`): the forward runs on the input itself, the backward on
the decoded input. A buffered node that a reversible node feeds also sends the decoded input back as the activation to
reconstruct from.

`precision.buffer_device = "cpu"` keeps them in host memory; the inputs of a stage on the CPU are there anyway. On CUDA,

    compute   forward of m     | forward of m+1   | backward of m ...
    copies         put m ------>     put m+1 ------> fetch m ->

copies go over a stream of their own, between the device and pinned memory. That stream keeps their order, so a fetch
reads memory that its put has written; a put waits for the compute stream, which made the input, and the computations of
the backward wait for the fetch. Memory lives as long as copies use it: `record_stream` reports to PyTorch's allocators
which streams use a block, and they hand out pinned blocks again only after the copies issued with them have ended. The
host never waits.

Decision: stashed graphs and parameter versions are neither encoded nor moved. The gradient that the head's
`forward_backward` leaves for its backward is not either: it is a message that waits to be sent, in the next operation
except under the schedule "fill-drain".
"""

from __future__ import annotations

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Streams
from petra_graph.executor.encoded_tensors import EncodedTensors, decode, encode, encodes, map_payloads, payload
from petra_graph.executor.numerics import NumericsContext
from petra_graph.spec.model import StoredDtype


class HostCopy:
    """Tensors of a CUDA device in pinned memory; int8 scales, of four bytes, stay on the device."""

    def __init__(self, tensors: EncodedTensors, copies: torch.cuda.Stream) -> None:
        self.copies = copies
        self._fetched: tuple[EncodedTensors, torch.cuda.Event] | None = None
        copies.wait_stream(torch.cuda.current_stream(copies.device))
        with torch.cuda.stream(copies):
            self.host = map_payloads(self._put, tensors)

    def fetch(self) -> tuple[EncodedTensors, torch.cuda.Event]:
        """Begin to copy back, once; return the tensors on the device, and the event from which on they can be read."""
        if self._fetched is None:
            with torch.cuda.stream(self.copies):
                on_device = map_payloads(lambda host: host.to(self.copies.device, non_blocking=True), self.host)
                self._fetched = on_device, self.copies.record_event()
        return self._fetched

    def recall(self) -> EncodedTensors:
        """Return the tensors on the device; the computations that follow wait for the copies."""
        on_device, ready = self.fetch()
        compute = torch.cuda.current_stream(self.copies.device)
        compute.wait_event(ready)
        for value in on_device:
            payload(value).record_stream(compute)
        return on_device

    def _put(self, tensor: Tensor) -> Tensor:
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        host.copy_(tensor, non_blocking=True)
        tensor.record_stream(self.copies)
        return host


StashedInput = EncodedTensors | HostCopy


@frozen(kw_only=True)
class ActivationStore:
    """The way in which one stage keeps inputs."""

    stored: StoredDtype
    copies: torch.cuda.Stream | None
    """Stream of the copies to and from host memory; None: inputs stay on the stage's device."""

    changes: bool
    """Whether inputs wait in another form than they have."""

    @classmethod
    def of(cls, numerics: NumericsContext) -> ActivationStore:
        """Return the store that the precision asks for, on the stage's device."""
        device, precision = numerics.device, numerics.precision
        offload = precision.buffer_device == "cpu" and device.type == "cuda"
        copies = torch.cuda.Stream(device) if offload else None  # type: ignore[no-untyped-call]
        changes = offload or encodes(precision.buffer_dtype, numerics.dtype)
        return cls(stored=precision.buffer_dtype, copies=copies, changes=changes)

    def keep(self, streams: Streams) -> StashedInput:
        """Return the streams in the form in which they wait."""
        return self.keep_encoded(encode(streams, self.stored))

    def keep_encoded(self, tensors: EncodedTensors) -> StashedInput:
        """Return tensors that are encoded already in the form in which they wait."""
        return tensors if self.copies is None else HostCopy(tensors, self.copies)


def fetch(stashed: StashedInput) -> None:
    """Begin to copy back an input that will be restored soon."""
    if isinstance(stashed, HostCopy):
        stashed.fetch()


def as_encoded(stashed: StashedInput) -> EncodedTensors:
    """Return an input as it waits, encoded or not, and wherever it is."""
    if not isinstance(stashed, HostCopy):
        return stashed
    stashed.copies.synchronize()
    return stashed.host


def restore(stashed: StashedInput) -> Streams:
    """Return the streams; tensors that were neither encoded nor moved are the same."""
    return decode(stashed.recall() if isinstance(stashed, HostCopy) else stashed)
