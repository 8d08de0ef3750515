"""Encoded buffers and channels: stashed inputs are that small, only stashed and sent tensors are rounded, and training still converges."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from petra_graph.executor.encoded import EncodedTensor, decode
from petra_graph.executor.runners import Recompute
from tests.support.costs import encoded_bytes
from tests.support.lockstep import recorded_gradients
from tests.support.pipelines import GRAPHS, REVNET, SHAPES, batches, pipeline, plain_network, relative_error

STEP = {
    "bfloat16": torch.finfo(torch.bfloat16).eps,
    "int8": 1 / 127,
}
"""The relative distance of neighbours at the largest magnitude."""
GRADIENT = 4.0
"""Steps that a node's gradient may be off, in graphs of four to six nodes without kinks; 3.1 were measured at most."""
WHERE = {
    "channels": lambda stored: {"channel_dtype": stored},
    "buffers": lambda stored: {"buffer_dtype": stored},
    "both": lambda stored: {"channel_dtype": stored, "buffer_dtype": stored},
}


def same_bits(one, other) -> bool:
    expected = other.parameters()
    return all(torch.equal(value, expected[key]) for key, value in one.parameters().items())


def trained(graph, data, **more):
    built = pipeline(GRAPHS[graph], SHAPES[graph], **more)
    built.train(data)
    return built


WHOLE = tuple(table.name for table in REVNET)
NOTHING_TO_ENCODE = [
    ("channels", {"stages": (WHOLE,), "schedule": "sequential"}),
    ("buffers", {"method": "backprop"}),
]


@pytest.mark.parametrize(("where", "how"), NOTHING_TO_ENCODE)
def test_in_one_stage_there_are_no_channels_and_a_kept_graph_is_no_buffer(where, how):
    data = batches(SHAPES["revnet"], 6)
    plain, encoded = (
        trained("revnet", data, compute="float32", precision=precision, **how)
        for precision in ({}, WHERE[where]("int8"))
    )
    assert same_bits(encoded, plain)


def storage_bytes(carried) -> int:
    parts = [
        part
        for value in carried
        for part in ((value.payload, value.scale) if isinstance(value, EncodedTensor) else (value,))
    ]
    return sum(part.untyped_storage().nbytes() for part in parts if part is not None)


def planned_bytes(carried, stored) -> int:
    return sum(
        encoded_bytes(stream.shape, stored, str(stream.dtype).removeprefix("torch.")) for stream in decode(carried)
    )


@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_buffers_and_channels_hold_what_was_planned_to_the_byte(stored):
    """int8: a quarter of float32 and four bytes a tensor; the stem's samples, of the data set, are floating here."""
    precision = WHERE["both"](stored)
    built = pipeline(REVNET, (3, 6, 6), compute="float32", precision=precision, schedule="lockstep")
    seen = {"buffer": 0, "forward": 0, "backward": 0}

    def observe(_):
        for executor in built.executors:
            for _, runner in executor.runners:
                if isinstance(runner, Recompute):
                    check("buffer", (held for _, held in runner.buffer))
        for key, channel in built.runtime._channels.senders.items():
            weights = key.direction == "backward"
            check(key.direction, (message[: len(message) - weights] for message in channel.send.__self__))

    def check(kind, held):
        for carried in held:
            assert all(isinstance(value, EncodedTensor) for value in carried)
            assert (
                storage_bytes(carried) == planned_bytes(carried, stored) <= planned_bytes(carried, "as-streams") * 0.55
            )
            seen[kind] += len(carried)

    data = [(x.float(), target) for x, target in batches((3, 6, 6), 14)]
    built.runtime.train(data, range(14), observe)
    assert min(seen.values()) > 10


@pytest.mark.parametrize(
    ("graph", "where", "stored"),
    [
        ("chain", "channels", "bfloat16"),
        ("chain", "both", "int8"),
        ("skip", "buffers", "bfloat16"),
        ("skip", "channels", "int8"),
        ("branches", "buffers", "int8"),
        ("branches", "both", "bfloat16"),
    ],
)
def test_a_gradient_is_off_by_a_few_steps_of_the_type(graph, where, stored):
    """Learning rate zero, so that nothing else is: every micro-batch's gradient against plain autograd's."""
    data = batches(SHAPES[graph], 8)
    built = pipeline(GRAPHS[graph], SHAPES[graph], schedule="1f1b", rate=lambda _: 0.0, precision=WHERE[where](stored))
    modules, forward = plain_network(built)
    found = {executor.program.index: recorded_gradients(executor) for executor in built.executors}
    built.train(data)
    worst = 0.0
    for m, (x, target) in enumerate(data):
        for module in modules.values():
            module.zero_grad()
        cross_entropy(forward(x), target).backward()
        for executor in built.executors:
            expected = {
                f"{name}/{key}": p.grad
                for name in executor.program.nodes
                for key, p in modules[name].named_parameters()
                if p.grad is not None
            }
            worst = max(worst, relative_error(found[executor.program.index][m], expected))
    assert STEP[stored] / 10 < worst < GRADIENT * STEP[stored]


def test_a_buffer_filled_from_a_channel_of_its_type_loses_nothing_more():
    """What a channel has rounded, a buffer of the same type holds exactly; the stem reads images."""
    data = [((x * 40 + 128).clamp(0, 255).to(torch.uint8), target) for x, target in batches(SHAPES["revnet"], 12)]
    plain, channels, both = (
        trained("revnet", data, dtype="uint8", precision=precision)
        for precision in ({}, WHERE["channels"]("int8"), WHERE["both"]("int8"))
    )
    assert same_bits(both, channels)
    assert not same_bits(channels, plain)
