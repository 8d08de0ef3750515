"""Tensors by name on the host, with facts in JSON: the form in which a checkpoint holds a stage.

Tensors are noted with their strides: kernels are chosen by strides, and bits by kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from attrs import define, field
from torch import Tensor

from petra_graph.executor.encoded_tensors import EncodedTensor, EncodedTensors

Facts = dict[str, Any]
"""JSON."""


@define
class SavedTensors:
    """Tensors on the host by name, with the facts that make them what they were."""

    tensors: dict[str, Tensor] = field(factory=dict)
    """Dense, none in memory of another."""
    facts: Facts = field(factory=dict)

    def put(self, name: str, value: Tensor | EncodedTensor) -> None:
        """Copy a tensor."""
        if isinstance(value, EncodedTensor):
            self._fact("encoded")[name] = str(value.dtype).removeprefix("torch.")
            self.put(f"{name}/payload", value.payload)
            if value.scale is not None:
                self.put(f"{name}/scale", value.scale)
            return
        if not value.is_contiguous() and _dense(value):
            self._fact("strides")[name] = list(value.stride())
        copy = torch.empty(value.shape, dtype=value.dtype)
        self.tensors[name] = copy.copy_(value.detach())

    def get(self, name: str, device: torch.device) -> Tensor | EncodedTensor:
        """Return a tensor on a device, in the layout that it had."""
        if (dtype := self._fact("encoded").get(name)) is not None:
            scale = self.tensor(f"{name}/scale", device) if f"{name}/scale" in self.tensors else None
            payload = self.tensor(f"{name}/payload", device)
            return EncodedTensor(payload=payload, scale=scale, dtype=getattr(torch, dtype))
        return self.tensor(name, device)

    def put_all(self, name: str, values: EncodedTensors) -> None:
        """Copy several tensors."""
        self._fact("counts")[name] = len(values)
        for index, value in enumerate(values):
            self.put(f"{name}/{index}", value)

    def get_all(self, name: str, device: torch.device) -> EncodedTensors:
        """Return several tensors on a device."""
        return tuple(self.get(f"{name}/{index}", device) for index in range(self._fact("counts")[name]))

    def tensor(self, name: str, device: torch.device) -> Tensor:
        """Return a tensor that is not encoded."""
        stored = self.tensors[name]
        strides = self._fact("strides").get(name)
        shaped = (
            torch.empty_like(stored, device=device)
            if strides is None
            else torch.empty_strided(stored.shape, strides, dtype=stored.dtype, device=device)
        )
        return shaped.copy_(stored)

    def below(self, prefix: str, device: torch.device) -> dict[str, Tensor]:
        """Return the tensors whose names begin so, by the rest of their names."""
        return {
            name.removeprefix(prefix): self.tensor(name, device) for name in self.tensors if name.startswith(prefix)
        }

    def _fact(self, name: str) -> Facts:
        found: Facts = self.facts.setdefault(name, {})
        return found


def _dense(tensor: Tensor) -> bool:
    """Whether a tensor's elements fill a piece of memory, each once, in some order of dimensions."""
    expected = 1
    for stride, size in sorted(
        (stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True
