"""A window of gradients from several stages; what a stage holds is restored to the bit in `tests/promises/test_resumed_pipelines.py`."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from petra_graph.executor.checkpoint_tensors import SavedTensors
from petra_graph.executor.stage_state import restore_window


def test_the_means_of_all_nodes_count_alike():
    """A stage divides by one count: a sum of six gradients counts as one of three where another node has three."""
    modules = {name: nn.Linear(2, 1, bias=False) for name in "ab"}
    parts = []
    for name, window in (("a", 6), ("b", 3)):
        part = SavedTensors(facts={"window": window, "weight": float(window)})
        part.put(f"gradients/{name}/weight", torch.full((1, 2), window * 10.0))
        parts.append(part)
    executor = SimpleNamespace(
        program=SimpleNamespace(device="cpu"), modules=modules, updater=SimpleNamespace(window=0, weight=0.0)
    )
    restore_window(executor, parts)
    assert (executor.updater.window, executor.updater.weight) == (3, 3.0)
    assert [module.weight.grad.tolist() for module in modules.values()] == [[[30.0, 30.0]]] * 2
