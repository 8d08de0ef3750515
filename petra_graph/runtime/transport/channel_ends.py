"""The two ends of a channel, whatever carries its messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from petra_graph.executor.encoded_tensors import EncodedTensors
from petra_graph.program.message_layout import MessageLayout


class Sender(Protocol):
    """The sending end of a channel."""

    def begin(self, layout: MessageLayout) -> None:
        """Send messages of this layout from now on."""
        ...

    def has_room(self) -> bool:
        """Whether a message can be sent."""
        ...

    def send(self, message: EncodedTensors) -> None: ...


class Receiver(Protocol):
    """The receiving end of a channel."""

    leases: bool
    """Messages lie in slots, of which there are few; a slot is taken for as long as a tensor over it lives."""

    def begin(self, layout: MessageLayout, samples: Iterable[int]) -> None:
        """Expect messages of this layout with these numbers of samples."""
        ...

    def ready(self) -> bool:
        """Whether `receive` would return at once."""
        ...

    def receive(self) -> EncodedTensors:
        """Return the oldest message."""
        ...
