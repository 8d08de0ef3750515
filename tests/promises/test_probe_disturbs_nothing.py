"""With and without a probe: the same bits, whatever the method, with batch statistics and dropout."""

from __future__ import annotations

import pytest
import torch

from petra_graph.fidelity.probe import Probe
from tests.support.pipelines import BRANCHES, CLASSES, REVNET, batches, node, pipeline

CASES = {
    f"{method}-{schedule}": (method, schedule, settings)
    for schedule in ("lockstep", "1f1b")
    for method, settings in (
        ("petra", {}),
        ("dsp", {}),
        ("pipedream", {}),
        ("delayed-reconstructed", {}),
    )
} | {
    "pipedream, graphs kept": ("pipedream", "lockstep", {"reversible": "graph", "buffered": "graph"}),
    "petra, last stage keeps its graph": ("petra", "lockstep", {"last_stage": "keep-graph"}),
    "petra-sequential": ("petra", "sequential", {}),
    "a list of depths": ("petra", (8, 8, 5, 3, 2, 1), {}),
    "backprop": ("backprop", None, {}),
    "gpipe": ("gpipe", None, {}),
    "1f1b-flush": ("1f1b-flush", None, {}),
}
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


def trained(network, case, accumulation, compute, *, chosen, precision=None):
    method, schedule, settings = case
    nodes, shape = NETWORKS[network]
    built = pipeline(
        nodes,
        shape,
        method=method,
        schedule=schedule,
        settings=settings,
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


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("case", CASES)
def test_same_bits(network, case, accumulation):
    plain, probed = (
        everything(*trained(network, CASES[case], accumulation, "float32", chosen=chosen))
        for chosen in ([], [0, 4, 5, COUNT - 1])
    )
    assert differing(plain, probed) == []


@pytest.mark.parametrize(
    ("compute", "precision"), [("bfloat16", {}), ("float32", {"streams": "grid", "grid_bits": 12})]
)
def test_same_bits_in_every_precision(compute, precision):
    plain, probed = (
        everything(
            *trained("batch statistics", CASES["petra-lockstep"], 3, compute, chosen=chosen, precision=dict(precision))
        )
        for chosen in ([], [0, 4, 5])
    )
    assert differing(plain, probed) == []


def test_a_disturbance_would_be_seen():
    """One bit of one parameter, before the second epoch."""
    built, seen = trained("dropout", CASES["petra-lockstep"], 1, "float32", chosen=[])
    before = everything(built, seen)
    parameter = built.executors[0].updater.parameters[0]
    with torch.no_grad():
        flat = parameter.view(-1)
        flat[0] = torch.nextafter(flat[0], torch.tensor(float("inf")))
    assert len(differing(before, everything(built, seen))) == 1
