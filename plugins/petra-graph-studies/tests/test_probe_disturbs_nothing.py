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


LOCKSTEP = {"method": "petra", "schedule": "lockstep"}
PAIRS = {name: tuple(zip(*[(table.name for table in nodes)] * 2, strict=True)) for name, (nodes, _) in NETWORKS.items()}
"""Stages of two nodes each, so that the last one holds more than the head."""


ROWS = [
    ("backprop", "sequential", "batch statistics", "per-block", 1),
    ("reversible-backprop", "sequential", "batch statistics", "per-block", 1),
    ("gpipe", "fill-drain", "branches", "per-block", 3),
    ("1f1b-flush", "1f1b", "batch statistics", "per-block", 3),
    ("pipedream", "lockstep", "batch statistics", "pairs", 3),
    ("dsp", "lockstep", "dropout", "per-block", 1),
    ("delayed-reconstructed", "lockstep", "branches", "pairs", 1),
    ("petra", "1f1b", "dropout", "pairs", 3),
]


def trained(network, settings, accumulation, compute, *, chosen, precision=None, stages="per-block"):
    nodes, shape = NETWORKS[network]
    built = pipeline(
        nodes,
        shape,
        **settings,
        stages=PAIRS[network] if stages == "pairs" else stages,
        accumulation=accumulation,
        compute=compute,
        precision=precision,
        momentum=0.9,
        weight_decay=1e-3,
    )
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


def differing(one, other):
    assert one.keys() == other.keys()
    return [key for key, value in one.items() if not torch.equal(torch.as_tensor(value), torch.as_tensor(other[key]))]


@pytest.mark.parametrize(("method", "schedule", "network", "stages", "accumulation"), ROWS)
def test_same_bits(method, schedule, network, stages, accumulation):
    how = {"method": method, "schedule": schedule}
    plain, probed = (
        everything(*trained(network, how, accumulation, "float32", chosen=chosen, stages=stages))
        for chosen in ([], [0, 4, 5, COUNT - 1])
    )
    assert differing(plain, probed) == []


def test_a_disturbance_would_be_seen():
    """One bit of one parameter, before the second epoch."""
    built, seen = trained("dropout", LOCKSTEP, 1, "float32", chosen=[])
    before = everything(built, seen)
    parameter = built.executors[0].updater.parameters[0]
    with torch.no_grad():
        flat = parameter.view(-1)
        flat[0] = torch.nextafter(flat[0], torch.tensor(float("inf")))
    assert len(differing(before, everything(built, seen))) == 1
