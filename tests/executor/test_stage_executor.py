"""One stage as a black box: its messages in and out."""

from __future__ import annotations

import torch

from petra_graph.executor.stage import BackwardMessage
from petra_graph.program.channels import Edge
from tests.support.pipelines import CHAIN, SKIP, batches, pipeline

ROUNDING = 1e-12


def stage(nodes, stages, index, **more):
    return pipeline(nodes, (8,), stages=stages, **more).executors[index]


def streams(seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(4, 6, generator=generator, dtype=torch.float64) for _ in range(2))


CUT = (("stem", "rev0", "rev1"), ("join", "rev2", "head"))


def test_the_first_stage_reads_samples_and_sends_each_edge():
    executor = stage(SKIP, CUT, 0)
    received = {Edge("input", "stem"): (batches((8,), 1)[0][0],)}
    done = executor.forward(0, received, None)
    assert set(done.sent) == {Edge("rev0", "join"), Edge("rev1", "join")}
    assert done.result is None
    assert received == {}


def test_the_last_stage_gives_a_result_and_returns_the_activations():
    executor = stage(SKIP, CUT, 1)
    first, second = streams(0), streams(1)
    received = {Edge("rev1", "join"): first, Edge("rev0", "join"): second}
    target = batches((8,), 1)[0][1]
    done = executor.forward(7, received, target)
    assert (done.sent, done.result.micro_batch, done.result.samples) == ({}, 7, 4)
    sent = executor.backward(7, {})
    assert set(sent) == {Edge("rev0", "join"), Edge("rev1", "join")}
    for edge, given in ((Edge("rev1", "join"), first), (Edge("rev0", "join"), second)):
        assert all(torch.equal(one, other) for one, other in zip(sent[edge].activation, given, strict=True))


def test_only_gradients_go_to_a_producer_that_stored_its_input():
    executor = stage(CHAIN, (("stem",), ("rev0", "rev1", "rev2", "head")), 1)
    executor.forward(0, {Edge("stem", "rev0"): streams()}, batches((8,), 1)[0][1])
    (message,) = executor.backward(0, {}).values()
    assert message.activation is None
    assert [gradient.shape for gradient in message.gradients] == [(4, 6), (4, 6)]


def test_gradients_of_several_consumers_are_summed():
    executor = stage(SKIP, (("stem",), ("rev0",), ("rev1",), ("join", "rev2", "head")), 1)
    outputs = executor.forward(0, {Edge("stem", "rev0"): streams()}, None).sent[Edge("rev0", "rev1")]
    one, other = streams(1), streams(2)
    together = tuple(a + b for a, b in zip(one, other, strict=True))

    def back(gradients, more):
        messages = {
            Edge("rev0", "rev1"): BackwardMessage(gradients=gradients, activation=None, weight=1.0),
            Edge("rev0", "join"): BackwardMessage(gradients=more, activation=outputs, weight=1.0),
        }
        executor.updater.optimizer.zero_grad()
        executor.forward(0, {Edge("stem", "rev0"): streams()}, None)
        (message,) = executor.backward(0, messages).values()
        return [*message.gradients, *(p.grad.clone() for p in executor.updater.parameters)]

    zeros = tuple(torch.zeros_like(stream) for stream in one)
    for found, expected in zip(back(one, other), back(together, zeros), strict=True):
        torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=ROUNDING)
