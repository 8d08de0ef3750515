"""With and without a probe: the same bits, whatever the method, with batch statistics and dropout."""

from __future__ import annotations

import pytest
import torch
from petra_graph_studies.probe import Probe

from tests.support.pipelines import BRANCHES, CLASSES, REVNET, batches, node, pipeline

DROPOUT = (
    node("stem", "linear-stem", features=6),
    node("rev0", "rev-mlp", hidden=16, dropout=0.5),
    node("rev1", "rev-mlp", hidden=16, dropout=0.5),
    node("anchor", "rev-mlp", kind="buffered", hidden=16, dropout=0.5),
    node("rev2", "rev-mlp", hidden=16, dropout=0.5),
    node("head", "pool-linear", outputs=CLASSES),
)
NETWORKS = {"batch statistics": (REVNET, (3, 6, 6)), "dropout": (DROPOUT, (8,)), "branches": (BRANCHES, (8,))}
"""Six stages each."""
COUNT = 10


PAIRS = {name: tuple(zip(*[(table.name for table in nodes)] * 2, strict=True)) for name, (nodes, _) in NETWORKS.items()}
"""Stages of two nodes each, so that the last one holds more than the head."""


ROWS = [
    ("backprop", "sequential", "batch statistics", "per-block", 1, "float32"),
    ("reversible-backprop", "sequential", "batch statistics", "per-block", 1, "float32"),
    ("gpipe", "fill-drain", "branches", "per-block", 3, "float32"),
    ("1f1b-flush", "1f1b", "batch statistics", "per-block", 3, "float32"),
    ("pipedream", "lockstep", "batch statistics", "pairs", 3, "float32"),
    ("dsp", "lockstep", "dropout", "per-block", 1, "float32"),
    ("delayed-reconstructed", "lockstep", "branches", "pairs", 1, "float32"),
    ("petra", "1f1b", "dropout", "pairs", 3, "float32"),
    ("petra", (8, 8, 5, 3, 2, 1), "dropout", "per-block", 3, "float32"),
    ("petra", "lockstep", "dropout", "per-block", 3, "bfloat16"),
]


def trained(network, stages, chosen, **how):
    nodes, shape = NETWORKS[network]
    stages = PAIRS[network] if stages == "pairs" else stages
    built = pipeline(nodes, shape, stages=stages, momentum=0.9, weight_decay=1e-3, **how)
    found = []
    if chosen:
        probe = Probe(built.executors, lambda micro_batch, _: found.append(micro_batch))
    seen = []
    torch.manual_seed(5)
    for start in (0, COUNT):
        if chosen:
            probe.begin(range(start, start + COUNT), [start + m for m in chosen])
        seen += built.train(batches(shape, COUNT, seed=start), start)
    assert len(found) == 2 * len(chosen)
    return built, seen


def everything(built, seen):
    """All that a run leaves behind, as tensors by name."""
    left = dict(built.parameters())
    for executor in built.executors:
        optimizer = executor.updater.optimizer
        assert all(p.grad is None for p in executor.updater.parameters)
        if optimizer is not None:
            for index, state in optimizer.state_dict()["state"].items():
                left |= {f"{executor.program.index}/{index}/{key}": value for key, value in state.items()}
    left |= {f"loss {result.micro_batch}": result.loss for result in seen}
    left["generator"] = torch.get_rng_state()
    return left


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_same_bits(row):
    method, schedule, network, stages, accumulation, compute = row
    how = {"method": method, "schedule": schedule, "accumulation": accumulation, "compute": compute}
    plain, probed = (everything(*trained(network, stages, chosen, **how)) for chosen in ([], [0, 4, 5, COUNT - 1]))
    assert plain.keys() == probed.keys()
    as_tensors = ((name, torch.as_tensor(value), torch.as_tensor(probed[name])) for name, value in plain.items())
    assert [name for name, one, other in as_tensors if not torch.equal(one, other)] == []
