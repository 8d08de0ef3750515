"""Encoded buffers and channels: stashed inputs are that small, only stashed and sent tensors are rounded, and by no more than their type."""

import pytest
import torch

from petra_graph.executor.encoded import EncodedTensor, decode
from petra_graph.executor.runners import Recompute
from tests.support.costs import encoded_bytes
from tests.support.pipelines import (
    GRAPHS,
    REVNET,
    SHAPES,
    batches,
    pipeline,
    plain_gradients,
    plain_network,
    recorded_gradients,
    relative_error,
)

STEP = {"bfloat16": torch.finfo(torch.bfloat16).eps, "int8": 1 / 127}
"""The relative distance of neighbours at the largest magnitude."""
GRADIENT = 4.0
"""Steps that a node's gradient may be off, in graphs of four to six nodes without kinks; 3.1 were measured at most."""


def encoded(where, stored):
    kinds = {"channels": ["channel_dtype"], "buffers": ["buffer_dtype"], "both": ["channel_dtype", "buffer_dtype"]}
    return dict.fromkeys(kinds[where], stored)


def storage_bytes(carried) -> int:
    parts = [part for value in carried for part in (value.payload, value.scale) if part is not None]
    return sum(part.untyped_storage().nbytes() for part in parts)


def planned_bytes(carried, stored) -> int:
    own = (str(stream.dtype).removeprefix("torch.") for stream in decode(carried))
    return sum(encoded_bytes(stream.shape, stored, dtype) for stream, dtype in zip(decode(carried), own, strict=True))


@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_buffers_and_channels_hold_what_was_planned_to_the_byte(stored):
    """int8: a quarter of float32 and four bytes a tensor; the stem's samples, of the data set, are floating here."""
    built = pipeline(REVNET, (3, 6, 6), compute="float32", precision=encoded("both", stored), schedule="lockstep")
    seen = {"buffer": 0, "forward": 0, "backward": 0}

    def observe(_):
        for _, runner in (each for executor in built.executors for each in executor.runners):
            if isinstance(runner, Recompute):
                check("buffer", (held for _, held in runner.buffer))
        for key, channel in built.runtime.channels.senders.items():
            weights = key.direction == "backward"
            check(key.direction, (message[: len(message) - weights] for message in channel.send.__self__))

    def check(kind, held):
        for carried in held:
            assert all(isinstance(value, EncodedTensor) for value in carried)
            as_they_are = planned_bytes(carried, "as-streams")
            assert storage_bytes(carried) == planned_bytes(carried, stored) <= as_they_are * 0.55
            seen[kind] += len(carried)

    data = [(x.float(), target) for x, target in batches((3, 6, 6), 14)]
    built.runtime.train(data, range(14), observe)
    assert min(seen.values()) > 10


@pytest.mark.parametrize(
    ("graph", "where", "stored"),
    [("chain", "channels", "bfloat16"), ("chain", "both", "int8"), ("branches", "buffers", "int8")],
)
def test_a_gradient_is_off_by_a_few_steps_of_the_type(graph, where, stored):
    """Learning rate zero, so that nothing else is: every micro-batch's gradient against plain autograd's."""
    data, how = batches(SHAPES[graph], 8), {"rate": lambda _: 0.0, "precision": encoded(where, stored)}
    built = pipeline(GRAPHS[graph], SHAPES[graph], schedule="1f1b", **how)
    modules, forward = plain_network(built)
    found = [recorded_gradients(executor) for executor in built.executors]
    built.train(data)
    worst = 0.0
    for m, batch in enumerate(data):
        seen = {key: value for of_stage in found for key, value in of_stage[m].items()}
        worst = max(worst, relative_error(seen, plain_gradients(modules, forward, batch)))
    assert STEP[stored] / 10 < worst < GRADIENT * STEP[stored]
